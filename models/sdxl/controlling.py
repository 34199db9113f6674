"""Part of SDXL that its ControlNets are: what they are told of a row, and add to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from models.control import by_row
from models.control.by_row import used
from models.control.places import SCALES
from models.sdxl.controlnet import ControlNet


def hints(
    networks: nnx.List, inputs: Mapping[str, Array], slots: int, latents: Float[Array, "h w c"]
) -> Float[Array, "slots h w first"]:
    """Return what steps are given of a row's control images; zeros in empty slots.

    Args:
        networks: ControlNets, as they lie on the devices.
    """
    first = networks[0].conv_in
    dtype = used(networks[0]).conv_in.kernel.dtype
    empty = jnp.zeros((*latents.shape[:2], first.out_features), dtype)

    def of(network: ControlNet, *slot: Array) -> Array:
        return used(network).hint(*(x[None] for x in slot))[0].astype(empty.dtype)

    reads = [partial(of, network) for network in networks]
    return by_row.hints(reads, inputs, slots, empty, SCALES)


def run_of(network: ControlNet) -> Callable[..., Any]:
    """Return a ControlNet as a step runs it, its weights gathered there."""
    return lambda *told: used(network)(*told)
