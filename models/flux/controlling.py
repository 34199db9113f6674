"""Part of Flux that its ControlNets are: what they are told of a row, and add to it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from models.control import by_row
from models.control.by_row import only, residuals, used
from models.control.places import ControlPlaces
from models.flux.config import FluxConfig
from models.flux.controlnet import FluxControlNet, Samples
from models.flux.image_inputs import ImageDraws
from models.flux.latents import image_ids
from models.interface.controls import RequestedControl
from models.interface.pipeline import PyTree
from models.nn.blocks.joint_transformer import Added, Arrays, Places
from models.nn.layers.padded_tokens import padding
from models.vae.patches import pack

NOISE = "control_noise"
"""Input of `encode`: noise of the VAE's posterior, [slots, h, w, c]."""
Encode = Callable[[Array, Array], Float[Array, "h w c"]]
"""Image in [-1, 1] and noise → latents."""


def control_inputs(
    places: ControlPlaces, controls: Sequence[RequestedControl], draws: ImageDraws
) -> dict[str, np.ndarray]:
    """Draw the noise of each control's latents, before any other; none without controls.

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

    # a switch takes its last branch for all numbers above: one is for every ControlNet
    return by_row.hints([read], inputs, slots, empty, NOISE)


def added(
    networks: nnx.List,
    transformer: FluxConfig,
    dtype: DTypeLike,
    rows: PyTree,
    values: Mapping[str, Array],
) -> Added:
    """Return what the controls of all rows add behind the transformer's blocks.

    ControlNets are told the prompt alone; both prompts have what they add, as in diffusers.

    Args:
        networks: ControlNets, as they lie on the devices.
        dtype: that they compute in.
    """
    ids = image_ids(*rows["grid"].shape[1:3])
    told = (
        *(x[:, None] for x in (rows["latents"], values["timestep"], values["guidance_scale"])),
        *(rows[name][:, :1] for name in ("prompt_embeds", "pooled_embeds")),
    )
    places = [places_of(network, transformer) for network in networks]
    of_double, of_single = ({*kinds} - {()} for kinds in zip(*places, strict=True))

    def run(network: FluxControlNet, own: tuple[Places, Places], *told: Array) -> Added:
        of_one_image = (*told[:-1], only(told[-1]))
        sampled = used(network)(ids, *of_one_image)
        shape = len(told[0]), len(ids) + padding(len(ids)), transformer.width
        blank = partial(_blank, shape, dtype)
        return Added(
            {**blank(of_double), **_of_blocks(own[0], sampled.double)},
            {**blank(of_single), **_of_blocks(own[1], sampled.single)},
        )

    runs = [partial(run, *one) for one in zip(networks, places, strict=True)]
    found: Added = residuals(runs, rows, values, told)
    return found


def places_of(network: FluxControlNet, transformer: FluxConfig) -> tuple[Places, Places]:
    """Return which of its samples each double and single block of the transformer is given."""
    config = network.config
    return (
        by_interval(transformer.num_layers, config.num_layers),
        by_interval(transformer.num_single_layers, config.num_single_layers),
    )


def by_interval(blocks: int, samples: int) -> Places:
    """Return which sample each block is given: neighbours share one; none where there are none."""
    interval = -(-blocks // max(samples, 1))
    return tuple(block // interval for block in range(blocks)) if samples else ()


def _blank(shape: tuple[int, int, int], dtype: DTypeLike, everywhere: Collection[Places]) -> Arrays:
    """Return zeros for all that any ControlNet adds: [batch, samples, tokens, width]."""
    batch, *of_image = shape
    return {places: jnp.zeros((batch, max(places) + 1, *of_image), dtype) for places in everywhere}


def _of_blocks(places: Places, samples: Samples | None) -> Arrays:
    """Return samples by their places, those that no block is given left out."""
    if samples is None or not places:
        return {}
    return {places: samples[:, : max(places) + 1]}
