"""Conditioning of the UNet: text embeddings, image sizes and distilled guidance."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int
from numpy.typing import DTypeLike

from models.sdxl.request import SdxlRequest, TimeIds
from models.spec.request import RequestError
from models.text.clip import ClipTextModel
from models.text.emphasis import emphasized

MAX_PERIOD = 10_000.0


def layers_from_the_end(
    request: SdxlRequest, *, prompts: int, layers: int
) -> Int[np.ndarray, " prompts"]:
    """Return the hidden layer used for each prompt; 1 is the penultimate layer's output.

    `clip_skip` selects an earlier layer for the prompt, but not for the negative prompt, as in
    diffusers.

    Raises: RequestError: `clip_skip` is not below the number of layers of the shallower encoder.
    """
    skip = request.clip_skip or 0
    if skip >= layers:
        raise RequestError("clip_skip", f"must be less than the text encoders' {layers} layers")
    return np.array([1 + skip, 1][:prompts], np.int32)


def encode_text(
    encoder: ClipTextModel,
    ids: Int[Array, "prompts *chunks tokens"],
    layers: Int[Array, " prompts"],
    weights: Float[Array, "prompts *chunks tokens"] | None = None,
    vectors: Float[Array, "prompts *chunks tokens hidden"] | None = None,
) -> tuple[Float[Array, "prompts all_tokens hidden"], Float[Array, "prompts features"]]:
    """Return each prompt's hidden states, `layers` from the end, and its pooled output.

    Chunks are encoded separately and their hidden states are concatenated. The pooled output is the
    first chunk's, without weights. Source: AUTOMATIC1111's stable-diffusion-webui,
    modules/sd_hijack_clip.py.

    Args:
        vectors: of the tokens of embeddings, which are negative.
    """
    prompts, tokens = len(ids), ids.shape[-1]
    if vectors is not None:
        vectors = vectors.reshape(-1, *vectors.shape[-2:])
    output = encoder(ids.reshape(-1, tokens), vectors)
    last, chunks = len(output.hidden_states) - 1, len(output.pooled) // prompts
    each = last - jnp.repeat(layers, chunks)
    hidden = output.hidden_states[each, jnp.arange(prompts * chunks)]
    if weights is not None:
        hidden = emphasized(hidden, weights.reshape(-1, tokens))
    return hidden.reshape(prompts, chunks * tokens, -1), output.pooled[::chunks]


def time_ids(
    numbers: TimeIds, prompts: int, dtype: DTypeLike
) -> Float32[np.ndarray, "prompts numbers"]:
    """Return each prompt's size conditioning, rounded to the UNet's precision as in diffusers."""
    return np.array(numbers[:prompts]).astype(dtype).astype(np.float32)


def guidance_embedding(scale: float, features: int) -> Float32[np.ndarray, " features"]:
    """Return the sinusoidal embedding of a guidance scale, for guidance-distilled UNets.

    Source: Meng et al. 2023, section 3.1; the frequencies are those of diffusers'
    get_guidance_scale_embedding.
    """
    half = features // 2
    rate = np.float32(math.log(MAX_PERIOD)) / np.float32(half - 1)
    exponent = np.arange(half, dtype=np.float32) * -rate
    frequencies = np.exp(exponent.astype(np.float64)).astype(np.float32)
    angles = (np.float32(scale - 1) * np.float32(1000) * frequencies).astype(np.float64)
    waves = np.concatenate([np.sin(angles), np.cos(angles), np.zeros(features % 2)])
    return waves.astype(np.float32)
