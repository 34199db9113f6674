"""Connectors of LTX-2: hidden states of all of a language model's layers → context of each stream.

Padding gives way to learned registers behind the words, so every token of a context counts.

Source: HaCohen et al. 2026 (LTX-2), section 3.2; diffusers pipelines/ltx2/connectors.py.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from models.ltx.attention import HeadsShape, TurnedAttention
from models.ltx.connectors_config import ConnectorsConfig, ConnectorShape
from models.ltx.rope import HeadTurns, turns_of
from models.nn.attention.attention import attention
from models.nn.blocks.feed_forward import GeluFeedForward
from models.nn.layers.norms import rms
from models.nn.layers.parameterised import linear
from models.nn.layers.scanned import scan, stack

States = Float[Array, "batch tokens width states"]
Tokens = Float[Array, "batch tokens width"]
OfVideo = Float[Array, "batch tokens video_width"]
OfAudio = Float[Array, "batch tokens audio_width"]
Mask = Bool[Array, "batch tokens"]

EPSILON = 1e-6
"""Epsilon of all norms; fixed in every LTX-2."""
SPREAD = 8
"""Width that a layer's states are scaled to, from the least to the greatest."""


class Contexts(NamedTuple):
    """Text as each stream reads it; every token counts."""

    video: Tokens
    audio: Tokens


class ConnectorBlock(nnx.Module):
    """Self-attention and feed-forward, each behind a norm without parameters."""

    def __init__(self, shape: ConnectorShape, *, rngs: nnx.Rngs, param_dtype: DTypeLike) -> None:
        width = shape.width
        heads = HeadsShape(
            width, width, shape.heads, shape.head_dim, gated=shape.gated, rope=shape.rope
        )
        self.attention = TurnedAttention(heads, rngs=rngs, param_dtype=param_dtype)
        self.feed_forward = GeluFeedForward(width, rngs=rngs, param_dtype=param_dtype)

    def __call__(self, x: Tokens, turns: HeadTurns, keys: Mask | None) -> Tokens:
        """Attend to the keys that count, then feed forward."""
        attend = partial(attention, keys=keys)
        x = x + self.attention(rms(x, EPSILON), attend, turns=turns)
        return x + self.feed_forward(rms(x, EPSILON))


class Connector(nnx.Module):
    """Projected text of one stream → its context."""

    def __init__(self, shape: ConnectorShape, *, rngs: nnx.Rngs, param_dtype: DTypeLike) -> None:
        self.shape = shape
        noise = nnx.initializers.normal(1.0)
        self.registers = (
            nnx.Param(
                noise(rngs.params(), (shape.registers, shape.width), param_dtype),
                axes=(None, "embed"),
            )
            if shape.registers
            else None
        )
        self.blocks = stack(
            lambda rngs: ConnectorBlock(shape, rngs=rngs, param_dtype=param_dtype),
            shape.layers,
            rngs,
        )

    def __call__(self, x: Tokens, mask: Mask) -> Tokens:
        """Connect a text whose words `mask` marks.

        Raises: ValueError: tokens that the registers do not divide.
        """
        tokens, shape = x.shape[1], self.shape
        places = np.arange(tokens, dtype=np.float32)[:, None] / np.float32(shape.base_tokens)
        turns = turns_of(places, shape.rope, shape.heads, shape.head_dim, shape.theta)
        keys = mask if self.registers is None else None
        x = self.registered(x, mask)
        x, _ = scan(self.blocks, x, lambda block, x: block(x, turns, keys))
        return rms(x, EPSILON)

    def registered(self, x: Tokens, mask: Mask) -> Tokens:
        """Move words to the front, and put registers in the places behind them."""
        if self.registers is None:
            return x
        tokens, registers = x.shape[1], self.registers[...]
        if tokens % len(registers):
            raise ValueError(
                f"{tokens} tokens of text must be a multiple of {len(registers)} registers "
                "(connector_num_learnable_registers)"
            )
        order = jnp.argsort(~mask, axis=1, stable=True)
        front = jnp.take_along_axis(x, order[..., None], axis=1)
        words = jnp.arange(tokens) < mask.sum(axis=1, keepdims=True)
        rest = jnp.tile(registers.astype(x.dtype), (tokens // len(registers), 1))
        return jnp.where(words[..., None], front, rest)


class TextConnectors(nnx.Module):
    """Hidden states → contexts of video and audio."""

    def __init__(
        self,
        config: ConnectorsConfig,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
    ) -> None:
        dense = partial(linear, use_bias=config.proj_bias, rngs=rngs, param_dtype=param_dtype)
        features = config.caption_channels * config.text_proj_in_factor
        self.config = config
        self.projections = nnx.List(
            [dense(features, width, (None, "embed")) for width in config.projected]
        )
        self.video, self.audio = (
            Connector(shape, rngs=rngs, param_dtype=param_dtype)
            for shape in (config.video, config.audio)
        )

    def __call__(self, states: States, mask: Mask) -> Contexts:
        """Connect the states of all layers.

        Args:
            mask: True for words; padding is on either side.
        """
        norm = by_token if self.config.per_modality_projections else by_layer
        normed = norm(states, mask)
        flat = normed.reshape(*normed.shape[:2], -1)
        video, audio = self._projected(flat)
        return Contexts(self.video(video, mask), self.audio(audio, mask))

    def _projected(self, flat: Tokens) -> tuple[OfVideo, OfAudio]:
        """Features of each stream: of one projection, or of two that are scaled by their widths."""
        if not self.config.per_modality_projections:
            (shared,) = self.projections
            return (both := shared(flat)), both
        video, audio = (
            project(flat * (width / self.config.caption_channels) ** 0.5)
            for project, width in zip(self.projections, self.config.projected, strict=True)
        )
        return video, audio


def by_token(states: States, mask: Mask) -> States:
    """Norm each token of each layer by its root mean square; padding is 0. LTX-2.3."""
    normed = jnp.moveaxis(rms(jnp.moveaxis(states, -1, 2), EPSILON), 2, -1)
    return jnp.where(mask[..., None, None], normed, 0)


def by_layer(states: States, mask: Mask) -> States:
    """Norm each layer of a text by the mean and the range of its words; padding is 0. LTX-2.0."""
    kept = mask[..., None, None]
    wide = states.astype(jnp.float32)
    numbers = mask.sum(axis=1)[:, None, None, None] * states.shape[2]
    mean = jnp.where(kept, wide, 0).sum(axis=(1, 2), keepdims=True) / (numbers + EPSILON)
    low = jnp.where(kept, wide, jnp.inf).min(axis=(1, 2), keepdims=True)
    high = jnp.where(kept, wide, -jnp.inf).max(axis=(1, 2), keepdims=True)
    normed = SPREAD * (wide - mean) / (high - low + EPSILON)
    return jnp.where(kept, normed, 0).astype(states.dtype)
