"""CLIP's vision encoder: an image → features of its patches.

Source: Radford et al. 2021, section 2.4, after Dosovitskiy et al. 2020 (ViT); transformers'
CLIPVisionModel for the conventions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from models.nn.attention.attention import Attention, default_attention
from models.nn.layers.parameterised import Kinds, conv, embed, linear
from models.nn.layers.scanned import scan, stack
from models.text.clip_encoder import ClipBlock, check_tower, layer_renames, tower_norm
from models.text.config import check_numbers, known_fields


@dataclass(frozen=True)
class ClipVisionConfig:
    """Contents of a CLIP's `image_encoder/config.json`; the defaults are those of transformers.

    Raises:
        ValueError: an invalid value, by name.
    """

    hidden_size: int = 768
    intermediate_size: int = 3072
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    projection_dim: int = 512
    num_channels: int = 3
    image_size: int = 224
    """Side of the image, in pixels."""
    patch_size: int = 32
    hidden_act: str = "quick_gelu"
    layer_norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        check_numbers("CLIP vision", self)
        check_tower(self)
        if self.patch_size > self.image_size:
            raise ValueError(
                f"CLIP vision patch_size {self.patch_size} is larger than the image_size "
                f"{self.image_size}"
            )

    @property
    def tokens(self) -> int:
        """Number of complete patches plus the class token."""
        return (self.image_size // self.patch_size) ** 2 + 1

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> ClipVisionConfig:
        """Read a parsed `config.json`, ignoring keys that do not shape the network."""
        return cls(**known_fields(cls, config))


class ClipVisionOutput(NamedTuple):
    """Output of CLIP's vision encoder."""

    last_hidden_state: Float[Array, "batch tokens hidden"]
    """Hidden state after the last layer."""
    pooled: Float[Array, "batch hidden"]
    """Normalized class token."""
    hidden_states: Float[Array, "layers_and_one batch tokens hidden"]
    """Normalized embeddings, then the output of each layer."""


class ClipVisionModel(nnx.Module):
    """CLIP's vision encoder: a class token and patches through a pre-norm transformer."""

    def __init__(
        self,
        config: ClipVisionConfig,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
        attention: Attention = default_attention,
    ) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        self.config = config
        width, patch = config.hidden_size, (config.patch_size, config.patch_size)
        zeros = jnp.zeros((width,), param_dtype)
        self.class_embedding = nnx.Param(zeros, axes=("embed",))
        self.patch_embedding = conv(
            config.num_channels, width, patch, strides=patch, use_bias=False, **kinds
        )
        self.position_embedding = embed(config.tokens, width, (None, "embed"), **kinds)
        self.norm_in = tower_norm(config, **kinds)
        self.blocks = stack(
            partial(ClipBlock, config, attention), config.num_hidden_layers, **kinds
        )
        self.pooled_norm = tower_norm(config, **kinds)

    def __call__(self, pixels: Float[Array, "batch height width channels"]) -> ClipVisionOutput:
        """Encode pixels from `preprocess`, in the network's image size.

        Raises: ValueError: another size.
        """
        side = self.config.image_size
        if pixels.shape[1:3] != (side, side):
            height, width = pixels.shape[1:3]
            raise ValueError(f"pixels are {width} x {height}, but this CLIP sees {side} x {side}")
        x = self.norm_in(self._embed(pixels))
        x, inputs = scan(self.blocks, x, lambda block, x: block(x))
        return ClipVisionOutput(x, self.pooled_norm(x[:, 0]), jnp.concatenate([inputs, x[None]]))

    def _embed(self, pixels: Array) -> Float[Array, "batch tokens hidden"]:
        patches = self.patch_embedding(pixels.astype(self.patch_embedding.kernel.dtype))
        patches = patches.reshape(len(pixels), -1, self.config.hidden_size)
        first = jnp.broadcast_to(self.class_embedding[...], (len(pixels), 1, patches.shape[-1]))
        return jnp.concatenate([first, patches], axis=1) + self.position_embedding.embedding[...]


class ClipVisionModelWithProjection(ClipVisionModel):
    """CLIP's vision encoder with `pooled` projected into the space shared with text."""

    def __init__(
        self,
        config: ClipVisionConfig,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
        attention: Attention = default_attention,
    ) -> None:
        super().__init__(config, rngs=rngs, param_dtype=param_dtype, attention=attention)
        self.projection = linear(
            config.hidden_size,
            config.projection_dim,
            ("embed", None),
            use_bias=False,
            rngs=rngs,
            param_dtype=param_dtype,
        )

    def __call__(self, pixels: Float[Array, "batch height width channels"]) -> ClipVisionOutput:
        """Encode pixels, with the pooled output projected. Raises: as `ClipVisionModel`."""
        output = super().__call__(pixels)
        return output._replace(pooled=self.projection(output.pooled))


_PREFIX = r"(?:vision_model\.)?"

RENAMES: tuple[tuple[str, str], ...] = (
    (rf"{_PREFIX}embeddings\.position_ids", ""),
    (rf"{_PREFIX}embeddings\.class_embedding", "class_embedding"),
    (rf"{_PREFIX}embeddings\.patch_embedding\.weight", "patch_embedding.kernel"),
    (rf"{_PREFIX}embeddings\.position_embedding\.weight", "position_embedding.embedding"),
    (rf"{_PREFIX}pre_layrnorm\.weight", "norm_in.scale"),
    (rf"{_PREFIX}pre_layrnorm\.bias", "norm_in.bias"),
    *layer_renames(_PREFIX),
    (rf"{_PREFIX}post_layernorm\.weight", "pooled_norm.scale"),
    (rf"{_PREFIX}post_layernorm\.bias", "pooled_norm.bias"),
    # The projection into the space shared with text is unused.
    (r"visual_projection\.weight", ""),
)
"""Checkpoint key → path, for files of transformers 4 (with `vision_model.`) and 5 (without)."""
PROJECTED_RENAMES: tuple[tuple[str, str], ...] = (
    *RENAMES[:-1],
    (r"visual_projection\.weight", "projection.kernel"),
)
"""`RENAMES` with the projection into the space shared with text."""
