"""CLIP's text tower, with and without the final projection.

Source: Radford et al. 2021, section 2.4; transformers' CLIPTextModel for the conventions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from models.nn.attention.attention import Attention, default_attention
from models.nn.layers.parameterised import Kinds, embed, linear
from models.nn.layers.scanned import scan, stack
from models.text.clip_encoder import ClipBlock, check_tower, layer_renames, tower_norm
from models.text.config import check_numbers, known_fields

LEGACY_EOS = 2
"""End-of-text id in old configs, regardless of the tokenizer; the actual id is then the largest."""


@dataclass(frozen=True)
class ClipConfig:
    """Config of a CLIP text encoder (`text_encoder/config.json`), with transformers' defaults.

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
        check_tower(self)

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> ClipConfig:
        """Read a parsed `config.json`; ignore keys that do not shape the network."""
        return cls(**known_fields(cls, config))


class ClipOutput(NamedTuple):
    """Output of the tower for tokens [batch, tokens]."""

    last_hidden_state: Float[Array, "batch tokens hidden"]
    """Hidden state after the final layer norm."""
    pooled: Float[Array, "batch features"]
    """Hidden state at the end-of-text token; projected if the model has a projection."""
    hidden_states: Float[Array, "layers_and_one batch tokens hidden"]
    """Embeddings, then the output of each layer, before the final layer norm."""


class ClipTextModel(nnx.Module):
    """CLIP text encoder: pre-norm transformer with causal attention."""

    def __init__(
        self,
        config: ClipConfig,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
        attention: Attention = default_attention,
    ) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        self.config = config
        width = config.hidden_size
        table = partial(embed, **kinds)
        self.token_embedding = table(config.vocab_size, width, ("vocab", "embed"))
        self.position_embedding = table(config.max_position_embeddings, width, (None, "embed"))
        self.blocks = stack(
            partial(ClipBlock, config, attention), config.num_hidden_layers, **kinds
        )
        self.final_norm = tower_norm(config, **kinds)

    def __call__(
        self,
        tokens: Int[Array, "batch tokens"],
        vectors: Float[Array, "batch tokens hidden"] | None = None,
    ) -> ClipOutput:
        """Encode prompt tokens with CLIP's text encoder.

        Args:
            vectors: embeddings of negative tokens, in place of the vocabulary's.

        Raises: ValueError: more tokens than the model has positions.
        """
        count, most = tokens.shape[1], self.config.max_position_embeddings
        if count > most:
            raise ValueError(f"{count} tokens are more than this CLIP's {most} positions")
        x = self.token_embedding.embedding[...][tokens]
        if vectors is not None:
            x = jnp.where(tokens[..., None] < 0, vectors.astype(x.dtype), x)
        x = x + self.position_embedding.embedding[...][:count]
        bias = _causal(count)
        x, inputs = scan(self.blocks, x, lambda block, x: block(x, bias))
        last = self.final_norm(x)
        pooled = last[jnp.arange(len(tokens)), _end_of_text(tokens, self.config.eos_token_id)]
        return ClipOutput(last, pooled, jnp.concatenate([inputs, x[None]]))


class ClipTextModelWithProjection(ClipTextModel):
    """CLIP text encoder whose `pooled` is projected into the space shared with images."""

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

    def __call__(
        self,
        tokens: Int[Array, "batch tokens"],
        vectors: Float[Array, "batch tokens hidden"] | None = None,
    ) -> ClipOutput:
        """Encode tokens, with the pooled output projected. Arguments as in `ClipTextModel`."""
        output = super().__call__(tokens, vectors)
        return output._replace(pooled=self.text_projection(output.pooled))


def _causal(tokens: int) -> Float[Array, "1 1 tokens tokens"]:
    is_visible = jnp.tril(jnp.ones((tokens, tokens), bool))
    return jnp.where(is_visible, 0.0, -jnp.inf).astype(jnp.float32)[None, None]


def _end_of_text(tokens: Int[Array, "batch tokens"], eos: int) -> Int[Array, " batch"]:
    """Return the pooled token's position: the largest id (legacy configs) or the first `eos`."""
    return jnp.argmax(tokens if eos == LEGACY_EOS else tokens == eos, axis=1)


_PREFIX = r"(?:text_model\.)?"

RENAMES: tuple[tuple[str, str], ...] = (
    (rf"{_PREFIX}embeddings\.position_ids", ""),
    (rf"{_PREFIX}embeddings\.token_embedding\.weight", "token_embedding.embedding"),
    (rf"{_PREFIX}embeddings\.position_embedding\.weight", "position_embedding.embedding"),
    *layer_renames(_PREFIX),
    (rf"{_PREFIX}final_layer_norm\.weight", "final_norm.scale"),
    (rf"{_PREFIX}final_layer_norm\.bias", "final_norm.bias"),
    (r"text_projection\.weight", "text_projection.kernel"),
)
"""Rename rules of files of transformers 4 (with `text_model.`) and 5 (without)."""

UNPROJECTED_RENAMES: tuple[tuple[str, str], ...] = (
    (r"(?:text_projection\.weight|logit_scale)", ""),
    *RENAMES,
)
"""Rename rules of an encoder without a projection, which ignore one in the files."""
