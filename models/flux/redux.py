"""Redux: images read as if they were text, by SigLIP and two layers behind it.

A request's images are added up, each times its scale, to the tokens of one, which stand behind
T5's. Text, T5's and CLIP's, is multiplied by the sum of the scales; no prompt at all is zeros.
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
"""Image prompts of a request: as many rows as a device's memory has to hold in SigLIP."""


@dataclass(frozen=True)
class ReduxConfig:
    """The fields of diffusers' ReduxImageEncoder config, with its defaults."""

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
        """Read a checkpoint's config. Raises: ValueError: an unknown key, or a wrong value."""
        return cls(**arguments(cls, config, "image_embedder/config.json"))


class ReduxImageEncoder(nnx.Module):
    """Features of patches → tokens like T5's, through three times their width."""

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
        """Apply the layers to each token."""
        return self.down(jax.nn.silu(self.up(features)))


RENAMES: tuple[tuple[str, str], ...] = tuple(
    (rf"redux_{name}\.{theirs}", f"{name}.{ours}")
    for name in ("up", "down")
    for theirs, ours in (("weight", "kernel"), ("bias", "bias"))
)
"""Checkpoint key → path, in diffusers' folders and the authors' file alike."""


def image_prompt_inputs(
    request: FluxRequest,
    prompts: Sequence[RequestedImagePrompt],
    preprocessor: ClipPreprocessor | None,
) -> dict[str, np.ndarray]:
    """Return the inputs of a row with image prompts; none without.

    Raises: RequestError: an image cannot be read.
    """
    if not prompts or preprocessor is None:
        return {}
    scales = np.array([one.scale for one in prompts], np.float32)
    has_text = bool(request.prompt or request.prompt_2)
    return {
        PIXELS: np.stack([preprocessor(open_image(one.image, one.field)) for one in prompts]),
        SCALES: scales,
        OF_TEXT: np.asarray(scales.sum() * has_text),
    }


def with_images(
    prompt_embeds: Float[Array, "prompts text_tokens joint"],
    pooled_embeds: Float[Array, "prompts pooled"],
    image_embeds: Float[Array, "images image_tokens joint"],
    inputs: Mapping[str, Array],
) -> dict[str, Array]:
    """Return the leaves of a row with the images' tokens behind its first prompt's.

    A negative prompt stays as it is, with zeros that do not count behind it; how many is the shape
    of `images_read`, an array without values.
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
    """Return which text tokens of rows count, each prompt a row of its own; None: all."""
    batch, prompts, tokens, _ = rows["prompt_embeds"].shape
    if READ not in rows or prompts == 1:
        return None
    counted = np.ones((prompts, tokens), bool)
    counted[1:, tokens - rows[READ].shape[1] :] = False
    return jnp.tile(jnp.asarray(counted), (batch, 1))
