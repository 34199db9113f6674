"""Trains a ControlNet of a finished SDXL, all else frozen, and writes it as diffusers does.

Source: Zhang et al. 2023 (ControlNet), section 3: it begins as the UNet's way down, and adds
nothing at first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float
from safetensors.numpy import save_file

from models.demo.training import beside
from models.demo.training.beside import Data, Sitting
from models.demo.training.checkpoint_folder import (
    DIFFUSERS_FILE,
    SavedNetwork,
    tensors,
    write_json,
)
from models.demo.training.weights import zeroed
from models.sdxl.control_config import ControlNetConfig
from models.sdxl.controlnet import ControlNet
from models.sdxl.key_mapping import CONTROL_RENAMES
from models.weights.loader import filled, flat_parameters

OUTPUTS = ("out", "mid_out")
"""Convolutions that begin as zeros."""


class SdxlWithControl(nnx.Module):
    """A finished SDXL beside a ControlNet: a Denoiser whose text is a pair, with edges."""

    def __init__(self, model: Any, control: ControlNet) -> None:
        self.model, self.control = model, control

    def read(self, tokens: Any) -> Any:
        """Encode prompts."""
        return self.model.read(tokens)

    def predict(
        self, latents: Float[Array, "batch h w c"], timestep: Float[Array, " batch"], text: Any
    ) -> Float[Array, "batch h w c"]:
        """Return the network's output; `text` is (text, edges as uint8 [batch, height, width])."""
        said, edges = text
        image = jnp.repeat(edges[..., None].astype(jnp.float32) / 255, 3, axis=-1)
        told = self.model.conditions(latents, timestep, said)
        control: Any = self.control
        added = control(*told, control.hint(image))
        return self.model.unet(*told, control=added)

    def loss(self, latents: Array, text: Any, key: jax.Array) -> Float[Array, ""]:
        """Return the loss of `predict` on these clean latents."""
        return self.model.error_of(self.predict, latents, text, key)


def untrained(model: Any, config: ControlNetConfig, seed: int) -> ControlNet:
    """Return a ControlNet that has of the UNet what both have, and adds nothing."""
    control = ControlNet(config, rngs=nnx.Rngs(seed))
    theirs = {path: jnp.copy(leaf[...]) for path, leaf in flat_parameters(model.unet).items()}
    ours = {path: leaf[...] for path, leaf in flat_parameters(control).items()}
    control = filled(control, {path: theirs.get(path, leaf) for path, leaf in ours.items()})
    zeroed(control, lambda path: path[0] in OUTPUTS)
    return control


def train(
    model: Any, control: ControlNet, data: Data, sitting: Sitting, state: Path | None = None
) -> ControlNet:
    """Train a ControlNet beside a model."""
    graph, first = nnx.split(control)
    model_graph, frozen = nnx.split(model)

    def loss(trained: Any, frozen: Any, latents: Array, text: Any, key: jax.Array) -> Array:
        whole = SdxlWithControl(nnx.merge(model_graph, frozen), nnx.merge(graph, trained))
        return whole.loss(latents, text, key)

    trained = beside.train(loss, first, frozen, data, sitting, state)
    done: ControlNet = nnx.merge(graph, trained)
    return done


def write(control: ControlNet, config: dict[str, Any], folder: Path) -> None:
    """Write a ControlNet's folder, in diffusers' layout."""
    saved = SavedNetwork(control, CONTROL_RENAMES, config)
    write_json(folder / "config.json", config)
    save_file(tensors(saved), folder / DIFFUSERS_FILE, metadata={"format": "pt"})
