"""Protocols of a demo family: its networks, its training subject, and its checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from lab.demo.training.checkpoint_folder import Checkpoint
from lab.demo.world.checker import Report
from models.sampling.base import Scheduler
from models.text.tokenizer import Tokenizer

Tokens = Mapping[str, Int[Array, "batch tokens"]]
"""Token ids of prompts, by text encoder."""
Text = Any
"""Text conditioning of the denoising network: a pytree with a leading batch axis."""


class Denoiser(Protocol):
    """NNX module of jointly trained text encoders and denoising network."""

    def read(self, tokens: Tokens) -> Text:
        """Encode tokenized prompts for the denoising network."""
        ...

    def predict(self, latents: Array, timestep: Float[Array, " batch"], text: Text) -> Array:
        """Return the network's output for noisy latents, at the scheduler's timesteps."""
        ...

    def loss(self, latents: Array, text: Text, key: jax.Array) -> Float[Array, ""]:
        """Return the loss of `predict` on these clean latents, at random noise."""
        ...


class Subject(Protocol):
    """Training subject: images or videos."""

    name: str
    """Name of the run folder with the autoencoder and the encoded drawings."""
    count: int
    """Number of encoded drawings."""

    def scenes(self, rng: np.random.Generator, count: int) -> list[Any]:
        """Return random training scenes, each with its `prompt`."""
        ...

    def draw(self, scene: Any, rng: np.random.Generator) -> np.ndarray:
        """Draw a random image or video of a scene."""

    def exams(self) -> Mapping[str, list[str]]:
        """Return held-out prompts by exam; the first exam selects the best model."""
        ...

    def check(self, drawing: np.ndarray, prompt: str) -> Report:
        """Check a drawing against its prompt."""

    def sheet(self, drawings: np.ndarray) -> np.ndarray:
        """Compose some drawings into one contact sheet."""
        ...

    def autoencoder(self, run: Path) -> nnx.Module:
        """Return the trained autoencoder of a run."""
        ...

    def untrained_autoencoder(self) -> nnx.Module:
        """Return the autoencoder with its initial weights."""
        ...

    def encode(self, vae: Any, pixels: Array) -> Array:
        """Encode pixels in [-1, 1] to the denoiser's latents."""
        ...

    def decode(self, vae: Any, latents: Array) -> Array:
        """Decode latents to uint8."""
        ...


class Recipe(Protocol):
    """Training recipe of one demo family."""

    name: str
    subject: Subject
    scheduler: Scheduler
    steps: int
    guidance: float
    batch: int
    """Drawings per training step."""
    latents_shape: tuple[int, ...]
    """Shape of one drawing's latents."""

    def untrained(self, seed: int) -> Any:
        """Return a Denoiser with its initial weights."""
        ...

    def write_tokenizers(self, folder: Path) -> None:
        """Write the tokenizers' files in the layout of a checkpoint."""
        ...

    def tokenizers(self, folder: Path) -> Mapping[str, Tokenizer]:
        """Return the tokenizers in the folder, by text encoder."""
        ...

    def checkpoint(self, model: Any, vae: Any) -> Checkpoint:
        """Return the checkpoint to export, from a trained denoiser and autoencoder."""
        ...
