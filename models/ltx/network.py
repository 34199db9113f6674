"""LTX-2 transformer: predicts the velocities of video and audio latents, which cross-attend.

Each stream has separate tokens, text and width. A block applies self-attention, text attention,
attention between the streams, and feed-forward. Norms have no parameters. Time modulates every
layer by vectors shared by all blocks, offset by each block's table.

Source: HaCohen et al. 2026 (LTX-2), section 3, in the parametrisation of diffusers'
LTX2VideoTransformer3DModel. Blocks are stacked and scanned (models/nn/layers/scanned.py).
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from models.ltx.attention import Others, RotaryAttention, Tokens
from models.ltx.config import LTX2Config, StreamSizes
from models.ltx.connectors import Contexts
from models.ltx.positions import audio_places, video_places
from models.ltx.rope import HeadRotaryTable, head_rotary_table
from models.nn.attention.attention import cross_attention, token_attention
from models.nn.blocks.feed_forward import GeluFeedForward
from models.nn.layers.activations import tanh_gelu
from models.nn.layers.embeddings import ConditionMLP, sinusoid
from models.nn.layers.norms import Modulation, layer_norm, rms
from models.nn.layers.parameterised import Kinds, activated, linear
from models.nn.layers.scanned import scan, stack
from models.parallel.placement import split

Vectors = Float[Array, "batch times count width"]
Time = Float[Array, " batch *tokens"]
Mask = Bool[Array, " batch"]

SINUSOIDS = 256
"""Width of a timestep's sinusoids; the same in every LTX-2."""
OUT_EPSILON = 1e-6
"""Epsilon of the last norm; the same in every LTX-2."""
SPLIT = ("batch", "tokens", None)


class Times(NamedTuple):
    """Timesteps of one stream, 1000 · sigma, float32, per row or per token."""

    stream: Time
    cross: Time
    """Timestep for attention between streams: this stream's in LTX-2.0, the other's
    sigma in 2.3."""
    text: Float[Array, " batch"]
    """Timestep of the text: the stream's sigma."""


class LatentSizes(NamedTuple):
    """Latent sizes, from which positions are computed."""

    grid: tuple[int, int, int]
    """Frames, rows and columns of video latents."""
    audio_latents: int
    fps: float


class Perturbations(NamedTuple):
    """Predictions in a batch with disabled attention, which guidance moves away from."""

    blocks: tuple[int, ...]
    """Blocks where `skip_self` applies. Source: Hyung et al. 2024 (STG), section 3."""
    skip_self: Mask
    """Batch entries that skip self-attention in those blocks."""
    skip_cross: Mask
    """Batch entries that skip attention between the streams, in all blocks."""


class Velocities(NamedTuple):
    """Predicted velocities of video and audio latents."""

    video: Tokens
    audio: Tokens


class StreamContext(NamedTuple):
    """Inputs of one stream to every block, in addition to its tokens."""

    vectors: Vectors
    """Shift, scale and gate of self-attention, of feed-forward, and of text attention's queries."""
    cross: Vectors
    """Scale and shift for audio-to-video attention, then for video-to-audio attention."""
    gate: Vectors
    """Gate of the output of attention to the other stream."""
    text: Tokens
    text_vectors: Vectors | None
    """Shift and scale of the text; None: each block's table only."""
    rope: HeadRotaryTable
    cross_rope: HeadRotaryTable


class StreamBlock(nnx.Module):
    """Layers of one stream (video or audio) in a transformer block."""

    def __init__(
        self,
        config: LTX2Config,
        stream: StreamSizes,
        other: StreamSizes,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike,
    ) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        self.self_attention = RotaryAttention(config.heads(stream, stream.width), **kinds)
        self.text_attention = RotaryAttention(config.heads(stream, stream.context), **kinds)
        shape = config.heads(stream, other.width, config.audio)
        self.cross_attention = RotaryAttention(shape, **kinds)
        self.feed_forward = GeluFeedForward(
            stream.width, use_bias=stream.feed_forward_bias, **kinds
        )
        self.table = table(stream.vectors, stream.width, **kinds)
        self.text_table = table(2, stream.context, **kinds) if config.modulates_text else None
        self.cross_table = table(5, stream.width, **kinds)
        self.epsilon, self.modulates_queries = config.norm_eps, stream.modulated_context

    def attend(self, x: Tokens, context: StreamContext, skip_self: Mask | None) -> Tokens:
        """Apply self-attention, then text attention.

        Args:
            skip_self: batch entries whose values replace the attention's output; None: no entries.
        """
        shift, scale, gate, _, _, _, *of_text = with_offsets(self.table[...], context.vectors)
        normed = rms(x, self.epsilon) * (1 + scale) + shift
        output = self.self_attention(
            normed, token_attention, rope=context.rope, skip_self=skip_self
        )
        x = x + output * gate
        queries, text = rms(x, self.epsilon), self._text(context)
        if not self.modulates_queries:
            return x + self.text_attention(queries, cross_attention, text)
        shift, scale, gate = of_text
        queries = queries * (1 + scale) + shift
        return x + self.text_attention(queries, cross_attention, text) * gate

    def _text(self, context: StreamContext) -> Tokens:
        """Return the text, modulated for this block's keys and values."""
        if self.text_table is None:
            return context.text
        vectors = context.text_vectors
        table = self.text_table[...]
        shift, scale = with_offsets(
            table, jnp.zeros_like(table)[None, None] if vectors is None else vectors
        )
        return context.text * (1 + scale) + shift

    def cross_attention_inputs(self, x: Tokens, context: StreamContext) -> tuple[Tokens, Tokens]:
        """Return the stream modulated for audio-to-video and for video-to-audio attention."""
        normed = rms(x, self.epsilon)
        vectors = with_offsets(self.cross_table[:4], context.cross)
        first_scale, first_shift, second_scale, second_shift = vectors
        return (
            normed * (1 + first_scale) + first_shift,
            normed * (1 + second_scale) + second_shift,
        )

    def attend_other_stream(
        self, tokens: Tokens, other: Others, context: StreamContext, keys: HeadRotaryTable
    ) -> Tokens:
        """Attend from one stream's tokens to the other stream's, and gate the output.

        Args:
            tokens, other: modulated tokens of both streams.
            keys: RoPE of the other stream.
        """
        (gate,) = with_offsets(self.cross_table[4:], context.gate)
        output = self.cross_attention(tokens, cross_attention, other, context.cross_rope, keys)
        return gate * output

    def apply_feed_forward(self, x: Tokens, context: StreamContext) -> Tokens:
        """Apply the stream's modulated feed-forward."""
        shift, scale, gate = with_offsets(self.table[...], context.vectors)[3:6]
        normed = rms(x, self.epsilon) * (1 + scale) + shift
        return split(x + self.feed_forward(normed) * gate, *SPLIT)


class AudioVideoBlock(nnx.Module):
    """Transformer block with a video and an audio stream."""

    def __init__(self, config: LTX2Config, *, rngs: nnx.Rngs, param_dtype: DTypeLike) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        self.video = StreamBlock(config, config.video, config.audio, **kinds)
        self.audio = StreamBlock(config, config.audio, config.video, **kinds)

    def __call__(
        self,
        x: tuple[Tokens, Others],
        contexts: tuple[StreamContext, StreamContext],
        skip_self: Mask | None,
        skip_cross: Mask | None,
    ) -> tuple[Tokens, Others]:
        """Attend within each stream, then between streams, and apply the feed-forwards.

        Args:
            skip_self, skip_cross: entries of `Perturbations` for this block; None: no entries.
        """
        (video, audio), (of_video, of_audio) = x, contexts
        video = self.video.attend(video, of_video, skip_self)
        audio = self.audio.attend(audio, of_audio, skip_self)
        video_inputs, audio_inputs = (
            self.video.cross_attention_inputs(video, of_video),
            self.audio.cross_attention_inputs(audio, of_audio),
        )
        by_audio = self.video.attend_other_stream(
            video_inputs[0], audio_inputs[0], of_video, of_audio.cross_rope
        )
        by_video = self.audio.attend_other_stream(
            audio_inputs[1], video_inputs[1], of_audio, of_video.cross_rope
        )
        if skip_cross is not None:
            by_audio, by_video = (
                jnp.where(skip_cross[:, None, None], 0, output) for output in (by_audio, by_video)
            )
        video, audio = video + by_audio, audio + by_video
        return self.video.apply_feed_forward(video, of_video), self.audio.apply_feed_forward(
            audio, of_audio
        )


class TextProjection(nnx.Module):
    """Two-layer MLP from text to a stream's width (LTX-2.0)."""

    def __init__(
        self, features: int, width: int, *, rngs: nnx.Rngs, param_dtype: DTypeLike
    ) -> None:
        self.up = linear(features, width, (None, "mlp"), rngs=rngs, param_dtype=param_dtype)
        self.down = linear(width, width, ("mlp", "embed"), rngs=rngs, param_dtype=param_dtype)

    def __call__(
        self, x: Float[Array, "batch tokens features"]
    ) -> Float[Array, "batch tokens width"]:
        """Project each text token to the stream's width."""
        return self.down(activated(self.up, x, tanh_gelu))


class TimeVectors(nnx.Module):
    """Embedding of a timestep to modulation vectors shared by all blocks."""

    def __init__(self, width: int, count: int, *, rngs: nnx.Rngs, param_dtype: DTypeLike) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        self.embed = ConditionMLP(SINUSOIDS, width, **kinds)
        self.vectors = Modulation(width, count, **kinds)

    def __call__(self, time: Time) -> tuple[Vectors, Float[Array, "batch times width"]]:
        """Return the vectors, and the embedding from which they are computed."""
        embedded = self.embed(sinusoid(time.reshape(-1), SINUSOIDS))
        vectors, batch = self.vectors(embedded), len(time)
        shape = (batch, -1, *vectors.shape[1:])
        return vectors.reshape(shape), embedded.reshape(batch, -1, embedded.shape[-1])


class StreamInOut(nnx.Module):
    """Input and output layers of one stream (video or audio)."""

    def __init__(
        self, config: LTX2Config, stream: StreamSizes, *, rngs: nnx.Rngs, param_dtype: DTypeLike
    ) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        times = partial(TimeVectors, **kinds)
        by_time = config.modulates_text and config.use_prompt_adaln_single
        self.gate_scale = (
            config.cross_attn_timestep_scale_multiplier / config.timestep_scale_multiplier
        )
        self.tokens_in = linear(stream.channels, stream.width, (None, "embed"), **kinds)
        self.text_in = (
            TextProjection(config.caption_channels, stream.width, **kinds)
            if config.use_prompt_embeddings
            else None
        )
        self.time = times(stream.width, stream.vectors)
        self.text_time = times(stream.context, 2) if by_time else None
        self.cross_time, self.gate_time = times(stream.width, 4), times(stream.width, 1)
        self.table = table(2, stream.width, **kinds)
        self.tokens_out = linear(stream.width, stream.channels, ("embed", None), **kinds)

    def embed_tokens(self, latents: Float[Array, "batch tokens channels"]) -> Tokens:
        """Embed latents as tokens."""
        return split(self.tokens_in(latents.astype(self.tokens_in.kernel.dtype)), *SPLIT)

    def context(
        self, text: Tokens, times: Times, ropes: tuple[HeadRotaryTable, HeadRotaryTable]
    ) -> tuple[StreamContext, Array]:
        """Return the inputs of every block, and the embedded time.

        Args:
            ropes: RoPE within the stream, and for attention between streams.
        """
        text = text.astype(self.tokens_in.kernel.dtype)
        vectors, embedded = self.time(times.stream)
        cross, _ = self.cross_time(times.cross)
        gate, _ = self.gate_time(times.cross * self.gate_scale)
        text_vectors = None if self.text_time is None else self.text_time(times.text)[0]
        text = text if self.text_in is None else self.text_in(text)
        return StreamContext(vectors, cross, gate, text, text_vectors, *ropes), embedded

    def project_output(
        self, x: Tokens, embedded: Float[Array, "batch times width"]
    ) -> Float[Array, "batch tokens channels"]:
        """Project the last block's tokens to a velocity."""
        shift, scale = with_offsets(self.table[...], embedded[:, :, None])
        return self.tokens_out(layer_norm(x, OUT_EPSILON) * (1 + scale) + shift)


class LTX2Transformer(nnx.Module):
    """Denoising transformer of LTX-2: video and audio latents, texts and times to velocities."""

    def __init__(
        self, config: LTX2Config, *, rngs: nnx.Rngs, param_dtype: DTypeLike = jnp.float32
    ) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        self.config = config
        self.video = StreamInOut(config, config.video, **kinds)
        self.audio = StreamInOut(config, config.audio, **kinds)
        self.blocks = stack(partial(AudioVideoBlock, config), config.num_layers, **kinds)

    def __call__(
        self,
        latents: tuple[Tokens, Others],
        contexts: Contexts,
        times: tuple[Times, Times],
        sizes: LatentSizes,
        perturbed: Perturbations | None = None,
    ) -> Velocities:
        """Compute the velocities of video and audio, in the dtype of the weights.

        Args:
            latents: tokens of video (frame by frame, row by row) and of audio.
            perturbed: predictions with disabled attention; None: no predictions.

        Raises: ValueError: blocks of `perturbed` that the network does not support.
        """
        of_video, of_audio = self.rope(sizes)
        video, video_time = self.video.context(contexts.video, times[0], of_video)
        audio, audio_time = self.audio.context(contexts.audio, times[1], of_audio)
        of_streams = (video, audio)
        x = (self.video.embed_tokens(latents[0]), self.audio.embed_tokens(latents[1]))
        skip_cross = None if perturbed is None else perturbed.skip_cross
        (video_out, audio_out), _ = scan(
            self.blocks,
            x,
            lambda block, x, *skip_self: block(x, of_streams, *(skip_self or (None,)), skip_cross),
            *self._skip_self(perturbed),
        )
        return Velocities(
            self.video.project_output(video_out, video_time),
            self.audio.project_output(audio_out, audio_time),
        )

    def _skip_self(
        self, perturbed: Perturbations | None
    ) -> tuple[Bool[Array, "layers batch"], ...]:
        """Return the entries without self-attention, by block; empty without any.

        Raises: ValueError: the network does not support perturbed attention, or lacks a block.
        """
        if perturbed is None or not perturbed.blocks:
            return ()
        blocks = perturbed.blocks
        if not self.config.perturbed_attn or not {*blocks} <= {*range(self.config.num_layers)}:
            raise ValueError(
                f"blocks {sorted(blocks)} cannot be without self-attention: perturbed_attn is "
                f"{self.config.perturbed_attn}, and there are {self.config.num_layers} blocks"
            )
        selected = jnp.isin(jnp.arange(self.config.num_layers), jnp.array(sorted(blocks)))
        return (selected[:, None] & perturbed.skip_self,)

    def rope(self, sizes: LatentSizes) -> tuple[tuple[HeadRotaryTable, HeadRotaryTable], ...]:
        """Return each stream's RoPE: for attention within it, and by time only between streams."""
        config = self.config
        seconds = max(config.pos_embed_max_pos, config.audio_pos_embed_max_pos)
        video = video_places(config, sizes.grid, sizes.fps)
        audio = audio_places(config, sizes.audio_latents)
        spans = (config.pos_embed_max_pos, config.base_height, config.base_width)
        return (
            (self._rope(video, spans, config.video), self._cross_rope(video, seconds)),
            (
                self._rope(audio, (config.audio_pos_embed_max_pos,), config.audio),
                self._cross_rope(audio, seconds),
            ),
        )

    def _cross_rope(self, places: np.ndarray, seconds: int) -> HeadRotaryTable:
        return self._rope(places[:, :1], (seconds,), self.config.audio)

    def _rope(
        self, places: np.ndarray, spans: tuple[int, ...], stream: StreamSizes
    ) -> HeadRotaryTable:
        fractions = places / np.array(spans, np.float32)
        kind, theta = self.config.rope_type, self.config.rope_theta
        return head_rotary_table(fractions, kind, stream.heads, stream.head_dim, theta)


def table(count: int, width: int, *, rngs: nnx.Rngs, param_dtype: DTypeLike) -> nnx.Param[Any]:
    """Create `count` learned modulation vectors, to which shared vectors are added."""
    vectors = jax.random.normal(rngs.params(), (count, width), param_dtype)
    return nnx.Param(vectors / width**0.5, axes=(None, "embed"))


def with_offsets(
    offsets: Float[Array, "count width"], vectors: Float[Array, "batch times _count width"]
) -> list[Float[Array, "batch times width"]]:
    """Add a block's learned vectors to the shared modulation vectors.

    Source: Chen et al. 2023 (PixArt-α), section 2.3.
    """
    both = offsets.astype(vectors.dtype) + vectors
    return [both[:, :, index] for index in range(len(offsets))]
