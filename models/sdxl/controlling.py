"""SDXL's ControlNets in the pipeline: hints of a row's control images, and their residuals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from models.control import by_row
from models.control.by_row import gathered_network
from models.control.slots import SCALES
from models.sdxl.controlnet import ControlNet


def hints(
    networks: Sequence[ControlNet],
    inputs: Mapping[str, Array],
    slots: int,
    latents: Float[Array, "h w c"],
) -> Float[Array, "slots h w first"]:
    """Embed a row's control images; empty slots are zeros.

    Args:
        networks: ControlNets, with weights as sharded on the devices.
    """
    first = networks[0].conv_in
    dtype = gathered_network(networks[0]).conv_in.kernel.dtype
    empty = jnp.zeros((*latents.shape[:2], first.out_features), dtype)

    def hint_of(network: ControlNet, *slot: Array) -> Array:
        return (
            gathered_network(network).hint(*(value[None] for value in slot))[0].astype(empty.dtype)
        )

    reads = [partial(hint_of, network) for network in networks]
    return by_row.hints(reads, inputs, slots, empty, SCALES)


def run_of(network: ControlNet) -> Callable[..., Any]:
    """Return a ControlNet's step function, which gathers the weights when called."""
    return lambda *inputs: gathered_network(network)(*inputs)
