"""UMT5's encoder: T5 with a relative position bias in every block.

Source: Chung et al. 2023 (UniMax), section 4.2; transformers' UMT5EncoderModel for the conventions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from models.nn.attention.attention import Attention, default_attention
from models.nn.layers.parameterised import Kinds, embed
from models.nn.layers.scanned import scan, stack
from models.parallel.placement import split
from models.text.config import known_fields
from models.text.t5 import SHARED_RENAMES, T5Block, T5Config, position_bias, rms_norm


@dataclass(frozen=True)
class UMT5Config(T5Config):
    """Config of a UMT5 (`text_encoder/config.json`), with transformers' defaults.

    Raises:
        ValueError: a value that the network cannot have, by name.
    """

    vocab_size: int = 250112
    d_ff: int = 1024
    num_layers: int = 8
    num_heads: int = 6
    feed_forward_proj: str = "gated-gelu"

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> UMT5Config:
        """Read a parsed `config.json`; ignore keys that do not shape the network."""
        return cls(**known_fields(cls, config))


class UMT5Encoder(nnx.Module):
    """UMT5 encoder: pre-norm transformer whose layers each have a relative position bias.

    In float16 the feed-forwards' last kernels and the residual stream are float32, as in
    transformers: their sums exceed float16's range.
    """

    def __init__(
        self,
        config: UMT5Config,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
        attention: Attention = default_attention,
    ) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        self.config = config
        self.token_embedding = embed(config.vocab_size, config.d_model, ("vocab", "embed"), **kinds)
        self.blocks = stack(partial(BiasedBlock, config, attention), config.num_layers, **kinds)
        self.final_norm = rms_norm(config, **kinds)

    def __call__(
        self, tokens: Int[Array, "batch tokens"], mask: Bool[Array, "batch tokens"] | None = None
    ) -> Float[Array, "batch tokens d_model"]:
        """Encode tokens; only keys for which `mask` is True are attended to (None: all).

        Masked tokens get features too; callers that need none replace them by zeros.
        """
        table = self.token_embedding.embedding[...]
        x = split(table[tokens], None, None, None).astype(stream_dtype(table.dtype))
        x, _ = scan(self.blocks, x, lambda block, x: block(x, mask))
        normed: Array = self.final_norm(x)
        return normed.astype(table.dtype)


class BiasedBlock(T5Block):
    """T5 block with a relative position bias of its own."""

    def __init__(
        self, config: UMT5Config, attention: Attention, *, rngs: nnx.Rngs, param_dtype: DTypeLike
    ) -> None:
        wide = stream_dtype(param_dtype)
        super().__init__(config, attention, rngs=rngs, param_dtype=param_dtype, out_dtype=wide)
        self.config = config
        self.relative_bias = embed(
            config.relative_attention_num_buckets,
            config.num_heads,
            (None, "heads"),
            rngs=rngs,
            param_dtype=param_dtype,
        )

    def __call__(
        self, x: Float[Array, "batch tokens d_model"], mask: Bool[Array, "batch tokens"] | None
    ) -> Float[Array, "batch tokens d_model"]:
        """Attend with this block's own position bias, then apply the feed-forward."""
        return super().__call__(x, position_bias(self.relative_bias, self.config, x.shape[1], mask))


def stream_dtype(dtype: DTypeLike) -> DTypeLike:
    """Return the dtype of the residual stream, by the dtype of the weights."""
    return jnp.float32 if dtype == jnp.float16 else dtype


RENAMES: tuple[tuple[str, str], ...] = (
    *SHARED_RENAMES,
    (
        r"encoder\.block\.(\d+)\.layer\.0\.SelfAttention\.relative_attention_bias\.weight",
        r"blocks.relative_bias.embedding[\1]",
    ),
)
"""Rename rules of checkpoint keys. For a path with two keys (tied arrays) the first is used."""

AUTHORS_MARK = "token_embedding.weight"
"""Key of files with the names of Wan's authors."""
_BLOCK = r"blocks\.(\d+)\."
AUTHORS_RENAMES: tuple[tuple[str, str], ...] = (
    (r"token_embedding\.weight", "token_embedding.embedding"),
    (rf"{_BLOCK}attn\.([qkv])\.weight", r"blocks.attention.\2.kernel[\1]"),
    (rf"{_BLOCK}attn\.o\.weight", r"blocks.attention.out.kernel[\1]"),
    (rf"{_BLOCK}norm1\.weight", r"blocks.attention_norm.scale[\1]"),
    (rf"{_BLOCK}norm2\.weight", r"blocks.feed_forward_norm.scale[\1]"),
    (rf"{_BLOCK}ffn\.fc1\.weight", r"blocks.feed_forward.up.kernel[\1]"),
    (rf"{_BLOCK}ffn\.gate\.0\.weight", r"blocks.feed_forward.gate.kernel[\1]"),
    (rf"{_BLOCK}ffn\.fc2\.weight", r"blocks.feed_forward.down.kernel[\1]"),
    (rf"{_BLOCK}pos_embedding\.embedding\.weight", r"blocks.relative_bias.embedding[\1]"),
    (r"norm\.weight", "final_norm.scale"),
)
"""Rename rules of the keys in files of Wan's authors. Source: Wan 2.1 (wan/modules/t5.py)."""
