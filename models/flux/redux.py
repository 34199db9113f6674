"""Redux: image prompts of Flux, embedded by SigLIP and two layers as text tokens.

The images' tokens are summed, each times its scale, and appended to T5's tokens. T5's and CLIP's
embeddings are multiplied by the sum of the scales, or by zero without a prompt.

Source: diffusers pipeline_flux_prior_redux.py, FluxPriorReduxPipeline.__call__, with one list for
both of its scales, and with or without its text encoders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from models.checkpoint.config_fields import arguments
from models.flux.request import FluxRequest
from models.interface.image_prompts import RequestedImagePrompt
from models.interface.images import open_image
from models.interface.pipeline import PyTree
from models.nn.layers.parameterised import linear
from models.vision.preprocess import ClipPreprocessor

PIXELS, SCALES, OF_TEXT = "redux_pixels", "redux_scales", "redux_text_scale"
"""Inputs of a row: [images, side, side, 3], [images] and a scalar."""
READ = "images_read"
MAX_IMAGES = 8
"""Maximum image prompts per request; bounds SigLIP's batch in device memory."""


@dataclass(frozen=True)
class ReduxConfig:
    """Fields of diffusers' ReduxImageEncoder config, with its defaults."""

    redux_dim: int = 1152
    """Width of SigLIP's features."""
    txt_in_features: int = 4096
    """Width of T5's embeddings."""

    def __post_init__(self) -> None:
        for name in ("redux_dim", "txt_in_features"):
            if type(getattr(self, name)) is not int or getattr(self, name) < 1:
                raise ValueError(f"{name} must be a positive integer, not {getattr(self, name)!r}")

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> ReduxConfig:
        """Parse `image_embedder/config.json`.

        Raises: ValueError: an unknown key or a wrong value.
        """
        return cls(**arguments(cls, config, "image_embedder/config.json"))


class ReduxImageEncoder(nnx.Module):
    """Two-layer MLP from patch features to text tokens; the hidden width is three times T5's."""

    def __init__(
        self, config: ReduxConfig, *, rngs: nnx.Rngs, param_dtype: DTypeLike = jnp.float32
    ) -> None:
        width, inner = config.txt_in_features, 3 * config.txt_in_features
        kinds: dict[str, Any] = {"rngs": rngs, "param_dtype": param_dtype}
        self.up = linear(config.redux_dim, inner, ("embed", "mlp"), **kinds)
        self.down = linear(inner, width, ("mlp", "embed"), **kinds)

    def __call__(
        self, features: Float[Array, "images tokens features"]
    ) -> Float[Array, "images tokens joint"]:
        """Map SigLIP's patch features to text tokens."""
        return self.down(jax.nn.silu(self.up(features)))


RENAMES: tuple[tuple[str, str], ...] = tuple(
    (rf"redux_{name}\.{source}", f"{name}.{target}")
    for name in ("up", "down")
    for source, target in (("weight", "kernel"), ("bias", "bias"))
)
"""Checkpoint key → path, for diffusers' folders and the original file."""


def image_prompt_inputs(
    request: FluxRequest,
    prompts: Sequence[RequestedImagePrompt],
    preprocessor: ClipPreprocessor | None,
) -> dict[str, np.ndarray]:
    """Return the image prompt inputs of a row; empty without image prompts.

    Raises: RequestError: an image cannot be decoded.
    """
    if not prompts or preprocessor is None:
        return {}
    scales = np.array([prompt.scale for prompt in prompts], np.float32)
    has_text = bool(request.prompt or request.prompt_2)
    return {
        PIXELS: np.stack(
            [preprocessor(open_image(prompt.image, prompt.field)) for prompt in prompts]
        ),
        SCALES: scales,
        OF_TEXT: np.asarray(scales.sum() * has_text),
    }


def with_images(
    prompt_embeds: Float[Array, "prompts text_tokens joint"],
    pooled_embeds: Float[Array, "prompts pooled"],
    image_embeds: Float[Array, "images image_tokens joint"],
    inputs: Mapping[str, Array],
) -> dict[str, Array]:
    """Return a row's embeddings with the images' tokens appended to the first prompt.

    The negative prompt is padded with masked zeros. Their number is the shape of `images_read`, an
    empty array.
    """
    scales, of_text = (inputs[name].astype(image_embeds.dtype) for name in (SCALES, OF_TEXT))
    images = (image_embeds * scales[:, None, None]).sum(axis=0, keepdims=True)
    images = jnp.pad(images, ((0, len(prompt_embeds) - 1), (0, 0), (0, 0)))
    factors = jnp.ones(len(prompt_embeds), image_embeds.dtype).at[0].set(of_text)
    return {
        "prompt_embeds": jnp.concatenate([prompt_embeds * factors[:, None, None], images], axis=1),
        "pooled_embeds": pooled_embeds * factors[:, None],
        READ: jnp.zeros((images.shape[1], 0)),
    }


def counted_text(rows: PyTree) -> Bool[Array, "both text_tokens"] | None:
    """Return the mask of text tokens, a row per prompt; None if all tokens are used."""
    batch, prompts, tokens, _ = rows["prompt_embeds"].shape
    if READ not in rows or prompts == 1:
        return None
    counted = np.ones((prompts, tokens), bool)
    counted[1:, tokens - rows[READ].shape[1] :] = False
    return jnp.tile(jnp.asarray(counted), (batch, 1))
