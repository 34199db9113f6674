"""Flux's ControlNets in the pipeline: hints of a row's control images, and their residuals."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from models.control import by_row
from models.control.by_row import gathered_network, residuals, single_kind
from models.control.slots import ControlSlots
from models.flux.config import FluxConfig
from models.flux.controlnet import FluxControlNet, Samples
from models.flux.image_inputs import ImageDraws
from models.flux.latents import image_ids
from models.interface.controls import RequestedControl
from models.interface.pipeline import PyTree
from models.nn.blocks.joint_transformer import Arrays, BlockIndices, ControlArrays
from models.nn.layers.padded_tokens import padding
from models.vae.patches import pack

NOISE = "control_noise"
"""Input of `encode`: noise for the VAE's posterior, [slots, h, w, c]."""
Encode = Callable[[Array, Array], Float[Array, "h w c"]]
"""Function from an image in [-1, 1] and noise to latents."""


def control_inputs(
    places: ControlSlots, controls: Sequence[RequestedControl], draws: ImageDraws
) -> dict[str, np.ndarray]:
    """Draw the noise of each control's latents before other noise; empty without controls.

    Source: diffusers pipeline_flux_controlnet.py, FluxControlNetPipeline.__call__.
    """
    if not controls:
        return {}
    noise = [draws.noise() for _ in controls]
    return {**places.inputs(controls), NOISE: places.by_slot(noise)}


def hints(
    encode: Encode, inputs: Mapping[str, Array], slots: int, empty: Float[Array, "tokens patch"]
) -> Float[Array, "slots tokens patch"]:
    """Return the packed latents of a row's control images; zeros in empty slots."""

    def read(image: Array, _: Array, noise: Array) -> Array:
        return pack(encode(2 * image - 1, noise)).astype(empty.dtype)

    # jax.lax.switch clamps the index, so one branch serves every ControlNet
    return by_row.hints([read], inputs, slots, empty, NOISE)


def control_arrays(
    networks: Sequence[FluxControlNet],
    transformer: FluxConfig,
    dtype: DTypeLike,
    rows: PyTree,
    values: Mapping[str, Array],
) -> ControlArrays:
    """Return the residuals of all rows' controls for the transformer's blocks.

    ControlNets receive only the positive prompt; their residuals apply to both prompts, as in
    diffusers.

    Args:
        networks: ControlNets, with weights as sharded on the devices.
        dtype: computation dtype of the ControlNets.
    """
    ids = image_ids(*rows["grid"].shape[1:3])
    inputs = (
        *(x[:, None] for x in (rows["latents"], values["timestep"], values["guidance_scale"])),
        *(rows[name][:, :1] for name in ("prompt_embeds", "pooled_embeds")),
    )
    places = [block_indices_of(network, transformer) for network in networks]
    of_double, of_single = ({*kinds} - {()} for kinds in zip(*places, strict=True))

    def run(
        network: FluxControlNet, places_of_blocks: tuple[BlockIndices, BlockIndices], *inputs: Array
    ) -> ControlArrays:
        of_one_image = (*inputs[:-1], single_kind(inputs[-1]))
        sampled = gathered_network(network)(ids, *of_one_image)
        shape = len(inputs[0]), len(ids) + padding(len(ids)), transformer.width
        blank = partial(_blank, shape, dtype)
        return ControlArrays(
            {**blank(of_double), **_of_blocks(places_of_blocks[0], sampled.double)},
            {**blank(of_single), **_of_blocks(places_of_blocks[1], sampled.single)},
        )

    runs = [partial(run, *pair) for pair in zip(networks, places, strict=True)]
    output: ControlArrays = residuals(runs, rows, values, inputs)
    return output


def block_indices_of(
    network: FluxControlNet, transformer: FluxConfig
) -> tuple[BlockIndices, BlockIndices]:
    """Return the index of the residual for each double and each single block."""
    config = network.config
    return (
        by_interval(transformer.num_layers, config.num_layers),
        by_interval(transformer.num_single_layers, config.num_single_layers),
    )


def by_interval(blocks: int, samples: int) -> BlockIndices:
    """Return the residual index of each block; adjacent blocks share one. Empty without any."""
    interval = -(-blocks // max(samples, 1))
    return tuple(block // interval for block in range(blocks)) if samples else ()


def _blank(
    shape: tuple[int, int, int], dtype: DTypeLike, everywhere: Collection[BlockIndices]
) -> Arrays:
    """Return zero residuals of all ControlNets: [batch, samples, tokens, width]."""
    batch, *of_image = shape
    return {places: jnp.zeros((batch, max(places) + 1, *of_image), dtype) for places in everywhere}


def _of_blocks(places: BlockIndices, samples: Samples | None) -> Arrays:
    """Return ControlNet residuals by block assignment, without those that no block uses."""
    if samples is None or not places:
        return {}
    return {places: samples[:, : max(places) + 1]}
