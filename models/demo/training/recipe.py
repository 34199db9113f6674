"""Recipe of a demo family: its networks, what they learn, and how they are stored."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from models.demo.training.checkpoint_folder import Checkpoint
from models.demo.world.checker import Report
from models.sampling.base import Scheduler
from models.text.tokenizer import Tokenizer

Tokens = Mapping[str, Int[Array, "batch tokens"]]
"""Token ids by text encoder."""
Text = Any
"""Text as the denoising network gets it: a pytree with a leading batch axis."""


class Denoiser(Protocol):
    """Text encoders and denoising network, trained together: an NNX module."""

    def read(self, tokens: Tokens) -> Text:
        """Encode prompts for the network."""
        ...

    def predict(self, latents: Array, timestep: Float[Array, " batch"], text: Text) -> Array:
        """The network's output for noisy latents; timesteps as the scheduler has them."""
        ...

    def loss(self, latents: Array, text: Text, key: jax.Array) -> Float[Array, ""]:
        """Return the loss of `predict` on these clean latents, at random noise."""
        ...


class Subject(Protocol):
    """Subject that is drawn: pictures or clips."""

    name: str
    """Name of the run's folder that holds the autoencoder and the encoded drawings."""
    count: int
    """Drawings that are encoded."""

    def scenes(self, rng: np.random.Generator, count: int) -> list[Any]:
        """Random training scenes, each with its `prompt`."""
        ...

    def draw(self, scene: Any, rng: np.random.Generator) -> np.ndarray:
        """Draw one of a scene's images or videos."""

    def exams(self) -> Mapping[str, list[str]]:
        """Held-out prompts by kind, the kind that counts first."""
        ...

    def check(self, drawing: np.ndarray, prompt: str) -> Report:
        """Report what a drawing shows of its prompt."""

    def sheet(self, drawings: np.ndarray) -> np.ndarray:
        """Compose some of the drawings into one picture."""
        ...

    def autoencoder(self, run: Path) -> nnx.Module:
        """The trained one."""
        ...

    def untrained_autoencoder(self) -> nnx.Module:
        """The same network with its first weights."""
        ...

    def encode(self, vae: Any, pixels: Array) -> Array:
        """Pixels in [-1, 1] to the latents that the denoiser works on."""
        ...

    def decode(self, vae: Any, latents: Array) -> Array:
        """The way back, to uint8."""
        ...


class Recipe(Protocol):
    """Family."""

    name: str
    subject: Subject
    scheduler: Scheduler
    steps: int
    guidance: float
    batch: int
    """Drawings of one training step."""
    latents_shape: tuple[int, ...]
    """Shape of one drawing's latents."""

    def untrained(self, seed: int) -> Any:
        """A Denoiser with its first weights."""
        ...

    def write_tokenizers(self, folder: Path) -> None:
        """Write the tokenizers' files as a checkpoint has them."""
        ...

    def tokenizers(self, folder: Path) -> Mapping[str, Tokenizer]:
        """Return the tokenizers in the folder, by text encoder."""
        ...

    def checkpoint(self, model: Any, vae: Any) -> Checkpoint:
        """Return what is written when the model is exported."""
        ...
