"""Toy pipeline whose videos have sound: two tones that depend on the latents."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from models.interface.pipeline import Clip, PyTree, split_sound
from tests.workers.toy import SPEC, ToyPipeline

RATE_HZ = 24000
SAMPLES = 5 * RATE_HZ // 8
"""Samples of five frames at the toy's frame rate."""


class SoundingToy(ToyPipeline):
    """Toy pipeline of videos with sound."""

    spec = SPEC.model_copy(update={"sound_hz": RATE_HZ})

    def decode(self, weights: PyTree, row: PyTree) -> Any:
        hz = 500 + 300 * jnp.tanh(row["latents"][:2, 0])
        times = jnp.arange(SAMPLES) / RATE_HZ
        tones = 0.5 * jnp.sin(2 * jnp.pi * hz[:, None] * times)
        return Clip(super().decode(weights, row), tones)

    def preview(self, weights: PyTree, row: PyTree) -> jax.Array:
        pixels, _ = split_sound(self.decode(weights, row))
        return pixels[..., ::8, ::8, :]
