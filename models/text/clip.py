"""CLIP's text tower, with and without the projection on top.

Source: Radford et al. 2021, section 2.4; transformers' CLIPTextModel for the conventions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from models.nn.attention import Attention, default_attention
from models.nn.layers import embed, linear
from models.nn.stack import scan, stack
from models.text.config import check_numbers, known

Activation = Callable[[Array], Array]

LEGACY_EOS = 2
"""Old configs say 2 whatever the tokenizer says; the end of text is then the largest id."""


def quick_gelu(x: Array) -> Array:
    """x σ(1.702 x). Source: Hendrycks & Gimpel 2016, section 2."""
    return x * jax.nn.sigmoid(jnp.asarray(1.702, x.dtype) * x)


ACTIVATIONS: Mapping[str, Activation] = {
    "quick_gelu": quick_gelu,
    "gelu": partial(jax.nn.gelu, approximate=False),
}


@dataclass(frozen=True)
class ClipConfig:
    """`text_encoder/config.json` of a CLIP; the defaults are those of transformers.

    Raises:
        ValueError: a value that the network cannot have, by name.
    """

    vocab_size: int = 49408
    hidden_size: int = 512
    intermediate_size: int = 2048
    projection_dim: int = 512
    num_hidden_layers: int = 12
    num_attention_heads: int = 8
    max_position_embeddings: int = 77
    hidden_act: str = "quick_gelu"
    layer_norm_eps: float = 1e-5
    eos_token_id: int = 49407

    def __post_init__(self) -> None:
        check_numbers("CLIP", self)
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"CLIP hidden_size {self.hidden_size} must be a multiple of "
                f"num_attention_heads {self.num_attention_heads}"
            )
        if self.hidden_act not in ACTIVATIONS:
            raise ValueError(
                f"CLIP hidden_act must be one of {', '.join(ACTIVATIONS)}, not {self.hidden_act!r}"
            )

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> ClipConfig:
        """Reads a parsed `config.json`; keys that do not shape the network are passed over."""
        return cls(**known(cls, config))


class ClipOutput(NamedTuple):
    """What the tower gives for tokens [batch, tokens]."""

    last_hidden_state: Float[Array, "batch tokens hidden"]
    """After the final layer norm."""
    pooled: Float[Array, "batch features"]
    """At the end-of-text token; projected where the model has a projection."""
    hidden_states: Float[Array, "layers_and_one batch tokens hidden"]
    """The embeddings, then the output of each layer, before the final layer norm."""


class ClipTextModel(nnx.Module):
    """Tokens → features: pre-norm transformer with causal attention."""

    def __init__(
        self,
        config: ClipConfig,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
        attention: Attention = default_attention,
    ) -> None:
        self.config = config
        width = config.hidden_size
        table = partial(embed, rngs=rngs, param_dtype=param_dtype)
        self.token_embedding = table(config.vocab_size, width, ("vocab", "embed"))
        self.position_embedding = table(config.max_position_embeddings, width, (None, "embed"))
        self.blocks = stack(
            lambda rngs: _Block(config, attention, rngs=rngs, param_dtype=param_dtype),
            config.num_hidden_layers,
            rngs,
        )
        self.final_norm = _layer_norm(config, rngs=rngs, param_dtype=param_dtype)

    def __call__(self, tokens: Int[Array, "batch tokens"]) -> ClipOutput:
        """Raises: ValueError: more tokens than the model has positions for."""
        count, most = tokens.shape[1], self.config.max_position_embeddings
        if count > most:
            raise ValueError(f"{count} tokens are more than this CLIP's {most} positions")
        x = self.token_embedding.embedding[...][tokens]
        x = x + self.position_embedding.embedding[...][:count]
        bias = _causal(count)
        x, inputs = scan(self.blocks, x, lambda block, x: block(x, bias))
        last = self.final_norm(x)
        pooled = last[jnp.arange(len(tokens)), _end_of_text(tokens, self.config.eos_token_id)]
        return ClipOutput(last, pooled, jnp.concatenate([inputs, x[None]]))


class ClipTextModelWithProjection(ClipTextModel):
    """The same tower; `pooled` goes through a linear map into the space shared with pictures."""

    def __init__(
        self,
        config: ClipConfig,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
        attention: Attention = default_attention,
    ) -> None:
        super().__init__(config, rngs=rngs, param_dtype=param_dtype, attention=attention)
        self.text_projection = linear(
            config.hidden_size,
            config.projection_dim,
            ("embed", None),
            use_bias=False,
            rngs=rngs,
            param_dtype=param_dtype,
        )

    def __call__(self, tokens: Int[Array, "batch tokens"]) -> ClipOutput:
        output = super().__call__(tokens)
        return output._replace(pooled=self.text_projection(output.pooled))


class _Block(nnx.Module):
    def __init__(
        self, config: ClipConfig, attention: Attention, *, rngs: nnx.Rngs, param_dtype: DTypeLike
    ) -> None:
        width, inner = config.hidden_size, config.intermediate_size
        dense = partial(linear, rngs=rngs, param_dtype=param_dtype)
        norm = partial(_layer_norm, config, rngs=rngs, param_dtype=param_dtype)
        self.heads = config.num_attention_heads
        self.attention = attention
        self.activation = ACTIVATIONS[config.hidden_act]
        self.norm1, self.norm2 = norm(), norm()
        self.q = dense(width, width, ("embed", "heads"))
        self.k = dense(width, width, ("embed", "heads"))
        self.v = dense(width, width, ("embed", "heads"))
        self.out = dense(width, width, ("heads", "embed"))
        self.up = dense(width, inner, ("embed", "mlp"))
        self.down = dense(inner, width, ("mlp", "embed"))

    def __call__(self, x: Float[Array, "batch tokens hidden"], bias: Array) -> Array:
        x = x + self._attend(self.norm1(x), bias)
        return x + self.down(self.activation(self.up(self.norm2(x))))

    def _attend(self, x: Array, bias: Array) -> Array:
        q, k, v = (_split_heads(layer(x), self.heads) for layer in (self.q, self.k, self.v))
        return self.out(self.attention(q, k, v, bias).reshape(x.shape))


def _split_heads(x: Array, heads: int) -> Array:
    return x.reshape(*x.shape[:-1], heads, -1)


def _layer_norm(config: ClipConfig, *, rngs: nnx.Rngs, param_dtype: DTypeLike) -> nnx.LayerNorm:
    return nnx.LayerNorm(
        config.hidden_size,
        epsilon=config.layer_norm_eps,
        use_fast_variance=False,
        scale_metadata={"axes": ("embed",)},
        bias_metadata={"axes": ("embed",)},
        param_dtype=param_dtype,
        rngs=rngs,
    )


def _causal(tokens: int) -> Float[Array, "1 1 tokens tokens"]:
    seen = jnp.tril(jnp.ones((tokens, tokens), bool))
    return jnp.where(seen, 0.0, -jnp.inf).astype(jnp.float32)[None, None]


def _end_of_text(tokens: Int[Array, "batch tokens"], eos: int) -> Int[Array, " batch"]:
    """Position of the token to pool at: the largest id (legacy configs) or the first `eos`."""
    return jnp.argmax(tokens if eos == LEGACY_EOS else tokens == eos, axis=1)


_LAYER = r"(?:text_model\.)?encoder\.layers\.(\d+)\."


def _layer_renames(theirs: str, ours: str, weight: str) -> tuple[tuple[str, str], ...]:
    return (
        (rf"{_LAYER}{theirs}\.weight", rf"blocks.{ours}.{weight}[\1]"),
        (rf"{_LAYER}{theirs}\.bias", rf"blocks.{ours}.bias[\1]"),
    )


RENAMES: tuple[tuple[str, str], ...] = (
    (r"(?:text_model\.)?embeddings\.position_ids", ""),
    (r"(?:text_model\.)?embeddings\.token_embedding\.weight", "token_embedding.embedding"),
    (r"(?:text_model\.)?embeddings\.position_embedding\.weight", "position_embedding.embedding"),
    *_layer_renames(r"layer_norm1", "norm1", "scale"),
    *_layer_renames(r"layer_norm2", "norm2", "scale"),
    *_layer_renames(r"self_attn\.q_proj", "q", "kernel"),
    *_layer_renames(r"self_attn\.k_proj", "k", "kernel"),
    *_layer_renames(r"self_attn\.v_proj", "v", "kernel"),
    *_layer_renames(r"self_attn\.out_proj", "out", "kernel"),
    *_layer_renames(r"mlp\.fc1", "up", "kernel"),
    *_layer_renames(r"mlp\.fc2", "down", "kernel"),
    (r"(?:text_model\.)?final_layer_norm\.weight", "final_norm.scale"),
    (r"(?:text_model\.)?final_layer_norm\.bias", "final_norm.bias"),
    (r"text_projection\.weight", "text_projection.kernel"),
)
"""Checkpoint key → path, for files of transformers 4 (with `text_model.`) and 5 (without)."""
