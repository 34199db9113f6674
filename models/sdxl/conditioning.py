"""Conditioning of the UNet beside the latents: texts, image sizes and distilled guidance."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int
from numpy.typing import DTypeLike

from models.interface.pipeline import RequestError
from models.sdxl.request import SdxlRequest
from models.spec.model_spec import Task
from models.text.clip import ClipTextModel
from models.text.tokenizer import Tokenizer

MAX_PERIOD = 10_000.0


def text_inputs(
    request: SdxlRequest, tokenizers: tuple[Tokenizer, Tokenizer], tokens: int, prompts: int
) -> dict[str, np.ndarray]:
    """`ids` and `ids_2` [prompts, tokens]: the prompt's, then the negative prompt's."""
    texts = [request.prompts, request.negative_prompts][:prompts]
    return {
        name: tokenizer.encode([pair[i] for pair in texts], tokens)
        for i, (name, tokenizer) in enumerate(zip(("ids", "ids_2"), tokenizers, strict=True))
    }


def layers_from_the_end(
    request: SdxlRequest, *, prompts: int, layers: int
) -> Int[np.ndarray, " prompts"]:
    """Return each prompt's hidden layer: 1 is the penultimate layer's output.

    The prompt's comes `clip_skip` layers earlier; the negative prompt's does not, as in diffusers.

    Raises: RequestError: more layers than the shallower encoder has.
    """
    skip = request.clip_skip or 0
    if skip >= layers:
        raise RequestError("clip_skip", f"must be less than the text encoders' {layers} layers")
    return np.array([1 + skip, 1][:prompts], np.int32)


def encode_text(
    encoder: ClipTextModel, ids: Int[Array, "prompts tokens"], layers: Int[Array, " prompts"]
) -> tuple[Float[Array, "prompts tokens hidden"], Float[Array, "prompts features"]]:
    """Return each prompt's hidden state, that many layers from the end, and its pooled output."""
    output = encoder(ids)
    last = len(output.hidden_states) - 1
    return output.hidden_states[last - layers, jnp.arange(len(ids))], output.pooled


def time_ids(
    request: SdxlRequest, task: Task, prompts: int, dtype: DTypeLike
) -> Float32[np.ndarray, "prompts numbers"]:
    """The sizes of each prompt in pixels, rounded to the network's precision as in diffusers."""
    return np.array(request.time_ids(task)[:prompts]).astype(dtype).astype(np.float32)


def guidance_embedding(scale: float, features: int) -> Float32[np.ndarray, " features"]:
    """A guidance scale as sines and cosines, for networks that have it distilled into them.

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
