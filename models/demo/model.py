"""The three networks that are trained together, as one module, and their first weights."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from models.demo.configs import VAE, Sizes
from models.demo.scenes import SIZE_PX
from models.demo.tokenizers import T5_LENGTH
from models.flux.latents import image_ids
from models.flux.transformer import FluxTransformer
from models.text.clip import ClipTextModel
from models.text.t5 import T5Encoder

SIDE = SIZE_PX // VAE.downsampling
"""Latents along a side of a picture."""
IMAGE_IDS = image_ids(SIDE, SIDE)
TEXT_IDS = np.zeros((T5_LENGTH, 3), int)


class TextToVelocity(nnx.Module):
    """Tokens of both encoders and noisy latents to velocity."""

    def __init__(self, sizes: Sizes, *, rngs: nnx.Rngs) -> None:
        self.clip = ClipTextModel(sizes.clip, rngs=rngs)
        self.t5 = T5Encoder(sizes.t5, rngs=rngs)
        self.transformer = FluxTransformer(sizes.flux, rngs=rngs)

    def read(
        self, clip_tokens: Int[Array, "batch clip"], t5_tokens: Int[Array, "batch t5"]
    ) -> tuple[Float[Array, "batch t5 joint"], Float[Array, "batch pooled"]]:
        """What the transformer is told of a prompt."""
        return self.t5(t5_tokens), self.clip(clip_tokens).pooled

    def velocity(
        self,
        latents: Float[Array, "batch tokens channels"],
        sigma: Float[Array, " batch"],
        text: tuple[Array, Array],
    ) -> Float[Array, "batch tokens channels"]:
        """noise − picture, as the transformer sees it in `latents` at `sigma`."""
        prompt_embeds, pooled = text
        return self.transformer(
            latents, prompt_embeds, pooled, 1000 * sigma, None, IMAGE_IDS, TEXT_IDS
        )


def untrained(seed: int, sizes: Sizes) -> TextToVelocity:
    """First weights: blocks that pass their input on, embeddings as large as what follows them."""
    model = TextToVelocity(sizes, rngs=nnx.Rngs(seed))
    for path, leaf in nnx.to_flat_state(nnx.state(model)):
        names = [str(part) for part in path]
        if any("modulation" in name for name in names) or "latents_out" in names:
            leaf[...] = jnp.zeros_like(leaf[...])
        elif names[-2] in ("token_embedding", "position_embedding"):
            leaf[...] = 0.5 * leaf[...] / jnp.std(leaf[...])
        elif names[0] == "t5" and names[-2:] == ["q", "kernel"]:
            leaf[...] = leaf[...] * sizes.t5.d_kv**-0.5
    return model


def shifted(sigma: Array, shift: float) -> Array:
    """Sigmas moved towards noise. Source: Esser et al. 2024, eq. 23."""
    return shift * sigma / (1 + (shift - 1) * sigma)
