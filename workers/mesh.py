"""Devices → mesh slices: each pool process works on one slice, and sees no other."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import Mesh

AXES = ("data", "fsdp", "cfg", "context", "tensor")
"""How a slice may split its work: rows, weights, guidance passes, tokens, heads."""


def slices(devices: Sequence[jax.Device], count: int) -> list[Mesh]:
    """`count` slices of one device each, in the order of the devices; every axis has size 1.

    Raises: ValueError: there are not that many devices.
    """
    if len(devices) < count:
        raise ValueError(
            f"{count} mesh slices need {count} devices, and there are {len(devices)}:"
            " lower `count` of the pool, or run the other pools on other machines"
        )
    shape = (1,) * len(AXES)
    return [Mesh(np.array([device]).reshape(shape), AXES) for device in devices[:count]]
