"""Trains a ControlNet of a finished, frozen SDXL, and writes it in diffusers' layout.

Source: Zhang et al. 2023 (ControlNet), section 3: it starts as a copy of the UNet's down path, with
zero outputs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float
from safetensors.numpy import save_file

from lab.demo.training import frozen_base
from lab.demo.training.checkpoint_folder import (
    DIFFUSERS_FILE,
    SavedNetwork,
    tensors,
    write_json,
)
from lab.demo.training.frozen_base import Data, TrainingRun
from lab.demo.training.weights import zeroed
from models.sdxl.control_config import ControlNetConfig
from models.sdxl.controlnet import ControlNet
from models.sdxl.key_mapping import CONTROL_RENAMES
from models.weights.loader import filled, flat_parameters

OUTPUTS = ("out", "mid_out")
"""ControlNet outputs that are initialized with zeros."""


class SdxlWithControl(nnx.Module):
    """Finished SDXL with a ControlNet; a Denoiser conditioned on a pair of text and edges."""

    def __init__(self, model: Any, control: ControlNet) -> None:
        self.model, self.control = model, control

    def read(self, tokens: Any) -> Any:
        """Encode prompts with the finished model's text encoders."""
        return self.model.read(tokens)

    def predict(
        self, latents: Float[Array, "batch h w c"], timestep: Float[Array, " batch"], text: Any
    ) -> Float[Array, "batch h w c"]:
        """Return the UNet's output; `text` is (text, edges as uint8 [batch, height, width])."""
        prompt, edges = text
        image = jnp.repeat(edges[..., None].astype(jnp.float32) / 255, 3, axis=-1)
        inputs = self.model.conditions(latents, timestep, prompt)
        control: Any = self.control
        added = control(*inputs, control.hint(image))
        return self.model.unet(*inputs, control=added)

    def loss(self, latents: Array, text: Any, key: jax.Array) -> Float[Array, ""]:
        """Return the loss of `predict` on these clean latents."""
        return self.model.error_of(self.predict, latents, text, key)


def untrained(model: Any, config: ControlNetConfig, seed: int) -> ControlNet:
    """Return a ControlNet initialized from the UNet's shared parameters, with zero outputs."""
    control = ControlNet(config, rngs=nnx.Rngs(seed))
    unet = {path: jnp.copy(leaf[...]) for path, leaf in flat_parameters(model.unet).items()}
    initial = {path: leaf[...] for path, leaf in flat_parameters(control).items()}
    control = filled(control, {path: unet.get(path, leaf) for path, leaf in initial.items()})
    zeroed(control, lambda path: path[0] in OUTPUTS)
    return control


def train(
    model: Any,
    control: ControlNet,
    data: Data,
    training_run: TrainingRun,
    state: Path | None = None,
) -> ControlNet:
    """Train a ControlNet for a frozen SDXL."""
    graph, first = nnx.split(control)
    model_graph, frozen = nnx.split(model)

    def loss(trained: Any, frozen: Any, latents: Array, text: Any, key: jax.Array) -> Array:
        controlled = SdxlWithControl(nnx.merge(model_graph, frozen), nnx.merge(graph, trained))
        return controlled.loss(latents, text, key)

    trained = frozen_base.train(loss, first, frozen, data, training_run, state)
    done: ControlNet = nnx.merge(graph, trained)
    return done


def write(control: ControlNet, config: dict[str, Any], folder: Path) -> None:
    """Write a ControlNet's folder, in diffusers' layout."""
    saved = SavedNetwork(control, CONTROL_RENAMES, config)
    write_json(folder / "config.json", config)
    save_file(tensors(saved), folder / DIFFUSERS_FILE, metadata={"format": "pt"})
