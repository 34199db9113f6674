"""Text connectors of LTX-2: hidden states of all language model layers to context per stream.

Learned registers replace padding after the words, so that every context token is attended to.

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

from models.ltx.attention import HeadsShape, RotaryAttention
from models.ltx.connectors_config import ConnectorsConfig, ConnectorShape
from models.ltx.rope import HeadRotaryTable, head_rotary_table
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
"""Epsilon of all norms; the same in every LTX-2."""
SPREAD = 8
"""Range that a layer's states are scaled to, from minimum to maximum."""


class Contexts(NamedTuple):
    """Text context of the video and the audio stream, without padding."""

    video: Tokens
    audio: Tokens


class ConnectorBlock(nnx.Module):
    """Transformer block of a text connector: self-attention and feed-forward after norms."""

    def __init__(self, shape: ConnectorShape, *, rngs: nnx.Rngs, param_dtype: DTypeLike) -> None:
        width = shape.width
        heads = HeadsShape(
            width, width, shape.heads, shape.head_dim, gated=shape.gated, rope=shape.rope
        )
        self.attention = RotaryAttention(heads, rngs=rngs, param_dtype=param_dtype)
        self.feed_forward = GeluFeedForward(width, rngs=rngs, param_dtype=param_dtype)

    def __call__(self, x: Tokens, rope: HeadRotaryTable, keys: Mask | None) -> Tokens:
        """Attend to unmasked keys, then apply the feed-forward."""
        attend = partial(attention, keys=keys)
        x = x + self.attention(rms(x, EPSILON), attend, rope=rope)
        return x + self.feed_forward(rms(x, EPSILON))


class Connector(nnx.Module):
    """Transformer from one stream's projected text to its context."""

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
            partial(ConnectorBlock, shape), shape.layers, rngs=rngs, param_dtype=param_dtype
        )

    def __call__(self, x: Tokens, mask: Mask) -> Tokens:
        """Compute the context of a text whose words are marked by `mask`.

        Raises: ValueError: the number of tokens is not a multiple of the registers.
        """
        tokens, shape = x.shape[1], self.shape
        places = np.arange(tokens, dtype=np.float32)[:, None] / np.float32(shape.base_tokens)
        rope = head_rotary_table(places, shape.rope, shape.heads, shape.head_dim, shape.theta)
        keys = mask if self.registers is None else None
        x = self.registered(x, mask)
        x, _ = scan(self.blocks, x, lambda block, x: block(x, rope, keys))
        return rms(x, EPSILON)

    def registered(self, x: Tokens, mask: Mask) -> Tokens:
        """Move the text tokens to the front, and replace padding by learned registers."""
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
    """Projections and connectors: hidden states to the contexts of video and audio."""

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
        """Compute both contexts from the states of all layers.

        Args:
            mask: True for words; padding is on either side.
        """
        norm = by_token if self.config.per_modality_projections else by_layer
        normed = norm(states, mask)
        flat = normed.reshape(*normed.shape[:2], -1)
        video, audio = self._projected(flat)
        return Contexts(self.video(video, mask), self.audio(audio, mask))

    def _projected(self, flat: Tokens) -> tuple[OfVideo, OfAudio]:
        """Project text to each stream's features, by one shared or two width-scaled projections."""
        if not self.config.per_modality_projections:
            (shared,) = self.projections
            return (both := shared(flat)), both
        video, audio = (
            project(flat * (width / self.config.caption_channels) ** 0.5)
            for project, width in zip(self.projections, self.config.projected, strict=True)
        )
        return video, audio


def by_token(states: States, mask: Mask) -> States:
    """Normalize each text token of each layer by its RMS; padding is 0 (LTX-2.3)."""
    normed = jnp.moveaxis(rms(jnp.moveaxis(states, -1, 2), EPSILON), 2, -1)
    return jnp.where(mask[..., None, None], normed, 0)


def by_layer(states: States, mask: Mask) -> States:
    """Normalize a text's states of each layer by mean and range; padding is 0 (LTX-2.0)."""
    selected = mask[..., None, None]
    values = states.astype(jnp.float32)
    numbers = mask.sum(axis=1)[:, None, None, None] * states.shape[2]
    mean = jnp.where(selected, values, 0).sum(axis=(1, 2), keepdims=True) / (numbers + EPSILON)
    low = jnp.where(selected, values, jnp.inf).min(axis=(1, 2), keepdims=True)
    high = jnp.where(selected, values, -jnp.inf).max(axis=(1, 2), keepdims=True)
    normed = SPREAD * (values - mean) / (high - low + EPSILON)
    return jnp.where(selected, normed, 0).astype(states.dtype)
