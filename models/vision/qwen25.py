"""Qwen2.5-VL's vision encoder: an image of any size → features for its language model.

Most layers attend within windows of the image, some to the entire image. Source: Bai et al. 2025
(Qwen2.5-VL), section 2.1; transformers' Qwen2_5_VisionTransformerPretrainedModel for the
conventions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from models.nn.attention.attention import Attention, default_attention
from models.nn.layers.parameterised import Kinds, conv, linear
from models.nn.layers.scanned import scan, stack
from models.text.config import check_numbers, known_fields
from models.text.qwen import RotaryTable, rms_norm, rotary_table, rotate_half
from models.vision.windows import Windows

EPSILON = 1e-6
"""Epsilon of the norms, constant in every Qwen2.5-VL."""
THETA = 10_000.0
Grid = tuple[int, int]
"""Rows and columns of an image's patches."""


@dataclass(frozen=True)
class QwenVisionConfig:
    """`vision_config` of a Qwen2.5-VL's config; the defaults are those of transformers.

    Raises:
        ValueError: an invalid value, by name.
    """

    depth: int = 32
    hidden_size: int = 3584
    hidden_act: str = "silu"
    intermediate_size: int = 3420
    num_heads: int = 16
    in_channels: int = 3
    patch_size: int = 14
    spatial_merge_size: int = 2
    """Side of the square of patches that is merged into one token of the language model."""
    temporal_patch_size: int = 2
    window_size: int = 112
    """Side of a window, in pixels."""
    out_hidden_size: int = 3584
    fullatt_block_indexes: tuple[int, ...] = (7, 15, 23, 31)
    """Layers that attend to the entire image."""

    def __post_init__(self) -> None:
        check_numbers("Qwen2.5-VL vision", self)
        if self.hidden_act != "silu":
            raise ValueError(f"Qwen2.5-VL vision hidden_act must be silu, not {self.hidden_act!r}")
        if self.hidden_size % (4 * self.num_heads):
            raise ValueError(
                f"Qwen2.5-VL vision hidden_size {self.hidden_size} must be a multiple of four "
                f"times num_heads {self.num_heads}: RoPE rotates pairs by row and by column"
            )
        if self.window_size < self.patch_size * self.spatial_merge_size:
            raise ValueError(
                f"Qwen2.5-VL vision window_size {self.window_size} must hold a token of "
                f"{self.patch_size * self.spatial_merge_size} pixels"
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
    def from_dict(cls, config: Mapping[str, Any]) -> QwenVisionConfig:
        """Read the complete model's config, ignoring keys that do not shape the vision encoder."""
        given = dict(config["vision_config"])
        full = given.get("fullatt_block_indexes", cls.fullatt_block_indexes)
        return cls(**known_fields(cls, {**given, "fullatt_block_indexes": tuple(full)}))

    def windows(self, grid: Grid) -> Windows:
        """Return the windows of an image with that patch grid."""
        merge = self.spatial_merge_size
        side = self.window_size // merge // self.patch_size
        return Windows.of((grid[0] // merge, grid[1] // merge), side, merge)


class WindowedBlock(nnx.Module):
    """Transformer block: attention within windows or to the entire image, and a gated MLP."""

    def __init__(self, config: QwenVisionConfig, attention: Attention, **kinds: Any) -> None:
        width, inner = config.hidden_size, config.intermediate_size
        self.heads, self.attention = config.num_heads, attention
        self.attention_norm, self.feed_forward_norm = (
            rms_norm(width, EPSILON, **kinds) for _ in range(2)
        )
        self.qkv = linear(width, 3 * width, ("embed", None), **kinds)
        self.out = linear(width, width, (None, "embed"), **kinds)
        self.gate, self.up = (linear(width, inner, ("embed", "mlp"), **kinds) for _ in range(2))
        self.down = linear(inner, width, ("mlp", "embed"), **kinds)

    def __call__(
        self,
        x: Float[Array, "windows patches width"],
        to_all: Array,
        bias: Float[Array, "windows 1 1 patches"],
        rope: RotaryTable,
    ) -> Float[Array, "windows patches width"]:
        """Apply attention to an image's patches, then the MLP.

        Args:
            to_all: whether to attend to the entire image.
            bias: of the logits of each patch as a key: the minimum for padding.
        """
        q, k, v = jnp.split(self.qkv(self.attention_norm(x)), 3, axis=-1)
        q, k, v = (part.reshape(*x.shape[:2], self.heads, -1) for part in (q, k, v))
        q, k = rotate_half(q, rope), rotate_half(k, rope)
        attended = jax.lax.cond(to_all, self._to_all, self.attention, q, k, v, bias)
        x = x + self.out(attended.reshape(x.shape))
        normed = self.feed_forward_norm(x)
        return x + self.down(jax.nn.silu(self.gate(normed)) * self.up(normed))

    def _to_all(self, q: Array, k: Array, v: Array, bias: Array) -> Array:
        """Attend to all windows of an image, with the queries of one window at a time."""
        k, v = (part.reshape(1, -1, *part.shape[2:]) for part in (k, v))
        full_bias = bias.reshape(1, 1, 1, -1)
        attended: Array = jax.lax.map(
            lambda window: self.attention(window[None], k, v, full_bias)[0], q
        )
        return attended


class QwenVisionModel(nnx.Module):
    """Qwen2.5-VL's vision encoder: patches → features, one token per square of patches."""

    def __init__(
        self,
        config: QwenVisionConfig,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
        attention: Attention = default_attention,
    ) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        width, wide = config.hidden_size, config.hidden_size * config.unit
        side = config.patch_size
        window = (config.temporal_patch_size, side, side)
        self.config = config
        self.patch_in = conv(config.in_channels, width, window, use_bias=False, **kinds)
        self.blocks = stack(partial(WindowedBlock, config, attention), config.depth, **kinds)
        self.merger_norm = rms_norm(width, EPSILON, **kinds)
        self.merger_in = linear(wide, wide, ("embed", "mlp"), **kinds)
        self.merger_out = linear(wide, config.out_hidden_size, ("mlp", "embed"), **kinds)

    def __call__(
        self, patches: Float[Array, "patches pixels"], grid: Grid
    ) -> Float[Array, "tokens features"]:
        """Encode the patches of one image to tokens of the language model.

        Args:
            patches: of an image, from `QwenPreprocessor`.
            grid: rows and columns of patches.
        """
        kernel = self.patch_in.kernel[...].transpose(3, 0, 1, 2, 4)
        x = patches.astype(kernel.dtype) @ kernel.reshape(patches.shape[-1], -1)
        windows = self.config.windows(grid)
        rows, columns = windows.cut(windows.places)
        of_axis = partial(rotary_table, head_dim=self.config.head_dim // 2, theta=THETA)
        rope = RotaryTable(
            *(
                jnp.concatenate(pair, axis=-1)
                for pair in zip(of_axis(rows), of_axis(columns), strict=True)
            )
        )
        bias = jnp.where(windows.filled, 0.0, jnp.finfo(jnp.float32).min)[:, None, None]
        full = np.isin(np.arange(self.config.depth), self.config.fullatt_block_indexes)
        x, _ = scan(
            self.blocks,
            windows.cut(x),
            lambda block, x, to_all: block(x, to_all, bias, rope),
            jnp.asarray(full),
        )
        merged = windows.joined(self.merger_norm(x)).reshape(-1, self.merger_in.in_features)
        return self.merger_out(jax.nn.gelu(self.merger_in(merged), approximate=False))


def _both(name: str, module: str, layer: str = "") -> tuple[tuple[str, str], ...]:
    return (
        (rf"{_VISUAL}{name}\.weight", f"{module}.kernel{layer}"),
        (rf"{_VISUAL}{name}\.bias", f"{module}.bias{layer}"),
    )


_VISUAL = r"(?:model\.)?visual\."
_BLOCK = {
    r"attn\.qkv": "qkv",
    r"attn\.proj": "out",
    **{rf"mlp\.{name}_proj": name for name in ("gate", "up", "down")},
}
RENAMES: tuple[tuple[str, str], ...] = (
    (rf"{_VISUAL}patch_embed\.proj\.weight", "patch_in.kernel"),
    *(
        rule
        for name, module in _BLOCK.items()
        for rule in _both(rf"blocks\.(\d+)\.{name}", f"blocks.{module}", r"[\1]")
    ),
    (rf"{_VISUAL}blocks\.(\d+)\.norm1\.weight", r"blocks.attention_norm.scale[\1]"),
    (rf"{_VISUAL}blocks\.(\d+)\.norm2\.weight", r"blocks.feed_forward_norm.scale[\1]"),
    (rf"{_VISUAL}merger\.ln_q\.weight", "merger_norm.scale"),
    *_both(r"merger\.mlp\.0", "merger_in"),
    *_both(r"merger\.mlp\.2", "merger_out"),
    (r"(?:model|language_model|lm_head)\..+", ""),
)
"""Key in a checkpoint of the complete model → path in the encoder; skips the language model."""
