"""Z-Image's ControlNets in the pipeline: the residuals of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array

from models.control import by_row
from models.control.by_row import NO_KIND, gathered_network
from models.control.slots import SCALES
from models.interface.pipeline import PyTree
from models.parallel.trace_options import trace_options
from models.vae.patches import PATCH
from models.zimage.controlnet import ZImageControlNet
from models.zimage.network import Residuals, ZImageTransformer


def residuals_of(
    networks: Sequence[ZImageControlNet],
    transformer: ZImageTransformer,
    rows: PyTree,
    values: Mapping[str, Array],
) -> Residuals:
    """Return the residuals of all rows' controls for the transformer's joint blocks.

    Each prompt has its own residuals, as in diffusers.

    Args:
        networks: ControlNets, with weights as sharded on the devices.
        transformer: the controlled transformer, with its weights gathered.
    """
    h, w = rows["grid"].shape[1:3]
    grid, prompts = (h // PATCH, w // PATCH), rows["captions"].shape[1]
    # the transformer's layers run with the adapters of the rows in question
    adapters, structure = jax.tree.flatten(trace_options().adapters)
    of_rows = (rows["latents"], values["timestep"], values[SCALES], *adapters)
    latents, timestep, scales, *pages = (jnp.repeat(x[:, None], prompts, axis=1) for x in of_rows)
    inputs = (latents, timestep, rows["captions"], rows["lengths"], scales, *pages)
    every = {network.config.control_layers_places for network in networks}

    def run(network: ZImageControlNet, *inputs: Array) -> Residuals:
        latents, timestep, captions, lengths, scales, *pages, hint, kinds = inputs
        scale = jnp.where(kinds == NO_KIND, 0, scales).sum(axis=1)
        options = replace(trace_options(), adapters=jax.tree.unflatten(structure, pages))
        with options.active():
            samples = gathered_network(network)(
                transformer, grid, latents, timestep, captions, lengths, scale, hint
            )
        batch, _, *tokens = samples.shape
        blank = {
            places: jnp.zeros((batch, len(places), *tokens), samples.dtype) for places in every
        }
        return {**blank, network.config.control_layers_places: samples}

    runs = [partial(run, network) for network in networks]
    output: Residuals = by_row.residuals(runs, rows, values, inputs)
    return output
