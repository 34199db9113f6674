"""Qwen3-VL's vision encoder: an image of any size → features for its language model.

All layers attend to the entire image. Its language model reads the features of some layers, too.
Source: Bai et al. 2025 (Qwen3-VL), section 2; transformers' Qwen3VLVisionModel for the conventions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from models.checkpoint.key_mapping import Renames
from models.nn.attention.attention import Attention, default_attention
from models.nn.layers.activations import tanh_gelu
from models.nn.layers.norms import LayerNorm
from models.nn.layers.parameterised import Kinds, conv, embed, linear
from models.nn.layers.scanned import scan, stack
from models.text.config import check_numbers, known_fields
from models.text.qwen import RotaryTable, rotary_table, rotate_half

EPSILON = 1e-6
"""Epsilon of the norms, constant in every Qwen3-VL."""
THETA = 10_000.0
Grid = tuple[int, int]
"""Rows and columns of an image's patches."""


@dataclass(frozen=True)
class Qwen3VisionConfig:
    """`vision_config` of a Qwen3-VL's config; the defaults are those of transformers.

    Raises:
        ValueError: an invalid value, by name.
    """

    depth: int = 27
    hidden_size: int = 1152
    hidden_act: str = "gelu_pytorch_tanh"
    intermediate_size: int = 4304
    num_heads: int = 16
    in_channels: int = 3
    patch_size: int = 16
    spatial_merge_size: int = 2
    """Side of the square of patches that is merged into one token of the language model."""
    temporal_patch_size: int = 2
    out_hidden_size: int = 3584
    num_position_embeddings: int = 2304
    """Learned positions, in a square that is resized to the image's patches."""
    deepstack_visual_indexes: tuple[int, ...] = (8, 16, 24)
    """Layers whose features are added in the language model, after its first layers in turn."""

    def __post_init__(self) -> None:
        check_numbers("Qwen3-VL vision", self)
        if self.hidden_act != "gelu_pytorch_tanh":
            raise ValueError(
                f"Qwen3-VL vision hidden_act must be gelu_pytorch_tanh, not {self.hidden_act!r}"
            )
        if self.hidden_size % (4 * self.num_heads):
            raise ValueError(
                f"Qwen3-VL vision hidden_size {self.hidden_size} must be a multiple of four times "
                f"num_heads {self.num_heads}: RoPE rotates pairs by row and by column"
            )
        if math.isqrt(self.num_position_embeddings) ** 2 != self.num_position_embeddings:
            raise ValueError(
                f"Qwen3-VL vision num_position_embeddings {self.num_position_embeddings} must be "
                "a square"
            )
        if any(not 0 <= layer < self.depth for layer in self.deepstack_visual_indexes):
            raise ValueError(
                f"Qwen3-VL vision deepstack_visual_indexes {self.deepstack_visual_indexes} must "
                f"be layers below depth {self.depth}"
            )

    @property
    def head_dim(self) -> int:
        """Features of an attention head."""
        return self.hidden_size // self.num_heads

    @property
    def unit(self) -> int:
        """Number of patches per token of the language model."""
        return self.spatial_merge_size**2

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> Qwen3VisionConfig:
        """Read the complete model's config, ignoring keys that do not shape the vision encoder."""
        given = dict(config["vision_config"])
        layers = given.get("deepstack_visual_indexes", cls.deepstack_visual_indexes)
        return cls(**known_fields(cls, {**given, "deepstack_visual_indexes": tuple(layers)}))


class ImageFeatures(NamedTuple):
    """Features of an image for the language model."""

    tokens: Float[Array, "tokens width"]
    """Input of its first layer."""
    added: Float[Array, "layers tokens width"]
    """Features to add after its first layers."""


class VisionBlock(nnx.Module):
    """Transformer block: attention to the entire image, and an MLP."""

    def __init__(
        self, config: Qwen3VisionConfig, attention: Attention, **kinds: Unpack[Kinds]
    ) -> None:
        width, inner = config.hidden_size, config.intermediate_size
        self.heads, self.attention = config.num_heads, attention
        self.attention_norm, self.feed_forward_norm = (
            LayerNorm(width, EPSILON, rngs=kinds["rngs"]) for _ in range(2)
        )
        self.qkv = linear(width, 3 * width, ("embed", None), **kinds)
        self.out = linear(width, width, (None, "embed"), **kinds)
        self.up = linear(width, inner, ("embed", "mlp"), **kinds)
        self.down = linear(inner, width, ("mlp", "embed"), **kinds)

    def __call__(
        self, x: Float[Array, "1 patches width"], rope: RotaryTable
    ) -> Float[Array, "1 patches width"]:
        """Apply attention to an image's patches, then the MLP."""
        q, k, v = jnp.split(self.qkv(self.attention_norm(x)), 3, axis=-1)
        q, k, v = (part.reshape(*x.shape[:2], self.heads, -1) for part in (q, k, v))
        attended = self.attention(rotate_half(q, rope), rotate_half(k, rope), v)
        x = x + self.out(attended.reshape(x.shape))
        return x + self.down(tanh_gelu(self.up(self.feed_forward_norm(x))))


class Merger(nnx.Module):
    """MLP from squares of patches to tokens of the language model.

    Args:
        norms_squares: whether a square's features are normalized together.
    """

    def __init__(
        self, config: Qwen3VisionConfig, *, norms_squares: bool, **kinds: Unpack[Kinds]
    ) -> None:
        width, wide = config.hidden_size, config.hidden_size * config.unit
        self.normed = wide if norms_squares else width
        self.norm = LayerNorm(self.normed, EPSILON, rngs=kinds["rngs"])
        self.first = linear(wide, wide, ("embed", "mlp"), **kinds)
        self.second = linear(wide, config.out_hidden_size, ("mlp", "embed"), **kinds)

    def __call__(self, x: Float[Array, "patches width"]) -> Float[Array, "tokens features"]:
        """Merge the patches of each square, which are consecutive."""
        normed = self.norm(x.reshape(-1, self.normed)).reshape(-1, self.first.in_features)
        return self.second(jax.nn.gelu(self.first(normed), approximate=False))


class Qwen3VisionModel(nnx.Module):
    """Qwen3-VL's vision encoder: patches → features, one token per square of patches."""

    def __init__(
        self,
        config: Qwen3VisionConfig,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
        attention: Attention = default_attention,
    ) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        side, width = config.patch_size, config.hidden_size
        block = partial(VisionBlock, config, attention)
        self.config = config
        self.patch_in = conv(
            config.in_channels, width, (config.temporal_patch_size, side, side), **kinds
        )
        self.places = embed(config.num_position_embeddings, width, (None, "embed"), **kinds)
        self.blocks = stack(block, config.depth, **kinds)
        self.merger = Merger(config, norms_squares=False, **kinds)
        self.mergers = nnx.List(
            Merger(config, norms_squares=True, **kinds) for _ in config.deepstack_visual_indexes
        )

    def __call__(self, patches: Float[Array, "patches pixels"], grid: Grid) -> ImageFeatures:
        """Encode the patches of one image to tokens of the language model.

        Args:
            patches: of an image, from `QwenPreprocessor`, square by square.
            grid: rows and columns of patches.
        """
        config = self.config
        kernel = self.patch_in.kernel[...].transpose(3, 0, 1, 2, 4)
        assert self.patch_in.bias is not None
        x = patches.astype(kernel.dtype) @ kernel.reshape(patches.shape[-1], -1)
        x = x + self.patch_in.bias[...] + self._resized_places(grid)
        of_axis = partial(rotary_table, head_dim=config.head_dim // 2, theta=THETA)
        by_axis = [of_axis(place) for place in squares(np.mgrid[: grid[0], : grid[1]], config)]
        rope = RotaryTable(*(jnp.concatenate(pair, -1) for pair in zip(*by_axis, strict=True)))
        last, before = scan(self.blocks, x[None], lambda block, x: block(x, rope))
        after = [*before[1:], last]
        added = [
            merger(after[layer][0])
            for merger, layer in zip(self.mergers, config.deepstack_visual_indexes, strict=True)
        ]
        return ImageFeatures(self.merger(last[0]), jnp.stack(added))

    def _resized_places(self, grid: Grid) -> Float[Array, "patches width"]:
        """Interpolate the learned position embeddings bilinearly to the image's patch grid."""
        side = math.isqrt(self.config.num_position_embeddings)
        rows, columns = (np.linspace(0, side - 1, count, dtype=np.float32) for count in grid)
        table = self.places.embedding[...]
        total = jnp.zeros((), table.dtype)
        for row, of_row in _neighbours(rows, side):
            for column, of_column in _neighbours(columns, side):
                index = squares((row[:, None] * side + column)[None], self.config)[0]
                weight = squares((of_row[:, None] * of_column)[None], self.config)[0]
                total = total + table[index] * jnp.asarray(weight[:, None], table.dtype)
        return total


def squares(places: np.ndarray, config: Qwen3VisionConfig) -> np.ndarray:
    """Reorder [axes, rows, columns] to squares of adjacent patches: [axes, patches]."""
    axes, rows, columns = places.shape
    side = config.spatial_merge_size
    cut = places.reshape(axes, rows // side, side, columns // side, side)
    return cut.transpose(0, 1, 3, 2, 4).reshape(axes, -1)


def _neighbours(places: np.ndarray, side: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the integer positions below and above each position, and their weights."""
    below = places.astype(int)
    share = places - below
    return [(below, 1 - share), (np.minimum(below + 1, side - 1), share)]


_VISUAL = r"(?:model\.)?visual\."
_BLOCK = {
    r"attn\.qkv": "qkv",
    r"attn\.proj": "out",
    r"mlp\.linear_fc1": "up",
    r"mlp\.linear_fc2": "down",
}
_NORMS = {"norm1": "attention_norm", "norm2": "feed_forward_norm"}
_MERGER = {"linear_fc1": "first", "linear_fc2": "second"}
_LEAVES = {"weight": "kernel", "bias": "bias"}
_SCALES = {"weight": "scale", "bias": "bias"}


def _rules(
    place: str, path: str, layers: Mapping[str, str], leaves: Mapping[str, str], index: str = ""
) -> Renames:
    return tuple(
        (rf"{_VISUAL}{place}{name}\.{array}", f"{path}{module}.{leaf}{index}")
        for name, module in layers.items()
        for array, leaf in leaves.items()
    )


RENAMES: Renames = (
    *_rules(r"patch_embed\.", "", {"proj": "patch_in"}, _LEAVES),
    (rf"{_VISUAL}pos_embed\.weight", "places.embedding"),
    *_rules(r"blocks\.(\d+)\.", "blocks.", _BLOCK, _LEAVES, r"[\1]"),
    *_rules(r"blocks\.(\d+)\.", "blocks.", _NORMS, _SCALES, r"[\1]"),
    *_rules(r"merger\.", "merger.", _MERGER, _LEAVES),
    *_rules(r"merger\.", "merger.", {"norm": "norm"}, _SCALES),
    *_rules(r"deepstack_merger_list\.(\d+)\.", r"mergers.\1.", _MERGER, _LEAVES),
    *_rules(r"deepstack_merger_list\.(\d+)\.", r"mergers.\1.", {"norm": "norm"}, _SCALES),
    (r"(?:model|language_model|lm_head)\..+", ""),
)
"""Key in a checkpoint of the complete model → path in the encoder; skips the language model."""
