"""LTX-2's transformer: velocities of video and audio latents, which attend to each other.

Each stream has tokens, text and a width of its own. In every block both attend to themselves and
to their texts, then to each other, and feed forward. Norms have no parameters; time modulates all
of it, by vectors that the blocks share, moved by tables that each has.

Source: HaCohen et al. 2026 (LTX-2), section 3, in the parametrisation of diffusers'
LTX2VideoTransformer3DModel. Blocks are stacked and scanned (models/nn/layers/scanned.py).
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from models.ltx.attention import Others, Tokens, TurnedAttention
from models.ltx.config import LTX2Config, StreamSizes
from models.ltx.connectors import Contexts
from models.ltx.positions import audio_places, video_places
from models.ltx.rope import HeadTurns, turns_of
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
"""Width of a timestep's sinusoids; fixed in every LTX-2."""
OUT_EPSILON = 1e-6
"""Epsilon of the last norm; fixed, too."""
SPLIT = ("batch", "tokens", None)


class Times(NamedTuple):
    """Timesteps of one stream, 1000 · sigma, float32: of each row, or of each of its tokens."""

    own: Time
    crossing: Time
    """Timestep where it meets the other stream: its own in LTX-2.0, the other's sigma in 2.3."""
    text: Float[Array, " batch"]
    """Timestep of its text: its sigma."""


class Places(NamedTuple):
    """Sizes that positions follow from."""

    grid: tuple[int, int, int]
    """Frames, rows and columns of video latents."""
    audio_latents: int
    fps: float


class Perturbed(NamedTuple):
    """Rows of a batch that lack a part of the network, for guidance away from them."""

    blocks: tuple[int, ...]
    """Blocks in which `alone` is. Source: Hyung et al. 2024 (STG), section 3."""
    alone: Mask
    """Rows whose streams do not attend to themselves there."""
    apart: Mask
    """Rows whose streams do not attend to each other, in any block."""


class Velocities(NamedTuple):
    """Velocities of both streams' latents."""

    video: Tokens
    audio: Tokens


class StreamContext(NamedTuple):
    """Context of one stream in every block."""

    vectors: Vectors
    """Shift, scale and gate of self-attention and of feed-forward, then of the text's queries."""
    crossing: Vectors
    """Scale and shift where the video asks the audio, then where the audio asks the video."""
    gate: Vectors
    """Gate of what the other stream answers."""
    text: Tokens
    text_vectors: Vectors | None
    """Shift and scale of the text; None: each block's table alone."""
    turns: HeadTurns
    cross_turns: HeadTurns


class StreamBlock(nnx.Module):
    """One stream's layers of a block."""

    def __init__(
        self,
        config: LTX2Config,
        own: StreamSizes,
        other: StreamSizes,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike,
    ) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        self.self_attention = TurnedAttention(config.heads(own, own.width), **kinds)
        self.text_attention = TurnedAttention(config.heads(own, own.context), **kinds)
        crossed = config.heads(own, other.width, config.audio)
        self.cross_attention = TurnedAttention(crossed, **kinds)
        self.feed_forward = GeluFeedForward(own.width, use_bias=own.feed_forward_bias, **kinds)
        self.table = table(own.vectors, own.width, **kinds)
        self.text_table = table(2, own.context, **kinds) if config.modulates_text else None
        self.cross_table = table(5, own.width, **kinds)
        self.epsilon, self.asks_by_time = config.norm_eps, own.modulated_context

    def attend(self, x: Tokens, context: StreamContext, alone: Mask | None) -> Tokens:
        """Attend to the stream itself, then to its text.

        Args:
            alone: rows whose tokens have their own values instead of attention's; None: none.
        """
        shift, scale, gate, _, _, _, *of_text = moved(self.table[...], context.vectors)
        normed = rms(x, self.epsilon) * (1 + scale) + shift
        found = self.self_attention(normed, token_attention, turns=context.turns, alone=alone)
        x = x + found * gate
        asking, text = rms(x, self.epsilon), self._text(context)
        if not self.asks_by_time:
            return x + self.text_attention(asking, cross_attention, text)
        shift, scale, gate = of_text
        asking = asking * (1 + scale) + shift
        return x + self.text_attention(asking, cross_attention, text) * gate

    def _text(self, context: StreamContext) -> Tokens:
        """Text as this block's keys and values see it."""
        if self.text_table is None:
            return context.text
        vectors = context.text_vectors
        own = self.text_table[...]
        shift, scale = moved(own, jnp.zeros_like(own)[None, None] if vectors is None else vectors)
        return context.text * (1 + scale) + shift

    def seen(self, x: Tokens, context: StreamContext) -> tuple[Tokens, Tokens]:
        """Return the stream where the video asks, and where the audio does."""
        normed = rms(x, self.epsilon)
        vectors = moved(self.cross_table[:4], context.crossing)
        first_scale, first_shift, second_scale, second_shift = vectors
        return (
            normed * (1 + first_scale) + first_shift,
            normed * (1 + second_scale) + second_shift,
        )

    def ask(self, own: Tokens, other: Others, context: StreamContext, keys: HeadTurns) -> Tokens:
        """Return what the other stream answers.

        Args:
            own, other: both streams, as they are seen.
            keys: turns of the other one.
        """
        (gate,) = moved(self.cross_table[4:], context.gate)
        found = self.cross_attention(own, cross_attention, other, context.cross_turns, keys)
        return gate * found

    def feed(self, x: Tokens, context: StreamContext) -> Tokens:
        """Feed forward."""
        shift, scale, gate = moved(self.table[...], context.vectors)[3:6]
        normed = rms(x, self.epsilon) * (1 + scale) + shift
        return split(x + self.feed_forward(normed) * gate, *SPLIT)


class AudioVideoBlock(nnx.Module):
    """A block of both streams."""

    def __init__(self, config: LTX2Config, *, rngs: nnx.Rngs, param_dtype: DTypeLike) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        self.video = StreamBlock(config, config.video, config.audio, **kinds)
        self.audio = StreamBlock(config, config.audio, config.video, **kinds)

    def __call__(
        self,
        x: tuple[Tokens, Others],
        contexts: tuple[StreamContext, StreamContext],
        alone: Mask | None,
        apart: Mask | None,
    ) -> tuple[Tokens, Others]:
        """Attend in each stream, then across, and feed forward.

        Args:
            alone, apart: as of `Perturbed`, in this block; None: no rows.
        """
        (video, audio), (of_video, of_audio) = x, contexts
        video = self.video.attend(video, of_video, alone)
        audio = self.audio.attend(audio, of_audio, alone)
        seen, heard = self.video.seen(video, of_video), self.audio.seen(audio, of_audio)
        by_audio = self.video.ask(seen[0], heard[0], of_video, of_audio.cross_turns)
        by_video = self.audio.ask(heard[1], seen[1], of_audio, of_video.cross_turns)
        if apart is not None:
            by_audio, by_video = (
                jnp.where(apart[:, None, None], 0, answer) for answer in (by_audio, by_video)
            )
        video, audio = video + by_audio, audio + by_video
        return self.video.feed(video, of_video), self.audio.feed(audio, of_audio)


class TextProjection(nnx.Module):
    """Linear, GELU, linear: text to a stream's width (LTX-2.0)."""

    def __init__(
        self, features: int, width: int, *, rngs: nnx.Rngs, param_dtype: DTypeLike
    ) -> None:
        self.up = linear(features, width, (None, "mlp"), rngs=rngs, param_dtype=param_dtype)
        self.down = linear(width, width, ("mlp", "embed"), rngs=rngs, param_dtype=param_dtype)

    def __call__(self, x: Tokens) -> Tokens:
        """Project each token."""
        return self.down(activated(self.up, x, tanh_gelu))


class TimeVectors(nnx.Module):
    """Timestep → vectors that all blocks share."""

    def __init__(self, width: int, count: int, *, rngs: nnx.Rngs, param_dtype: DTypeLike) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        self.embed = ConditionMLP(SINUSOIDS, width, **kinds)
        self.vectors = Modulation(width, count, **kinds)

    def __call__(self, time: Time) -> tuple[Vectors, Float[Array, "batch times width"]]:
        """Return the vectors, and the embedding that they are made of."""
        embedded = self.embed(sinusoid(time.reshape(-1), SINUSOIDS))
        vectors, batch = self.vectors(embedded), len(time)
        shape = (batch, -1, *vectors.shape[1:])
        return vectors.reshape(shape), embedded.reshape(batch, -1, embedded.shape[-1])


class StreamEnds(nnx.Module):
    """Layers before and behind the blocks of one stream."""

    def __init__(
        self, config: LTX2Config, own: StreamSizes, *, rngs: nnx.Rngs, param_dtype: DTypeLike
    ) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        times = partial(TimeVectors, **kinds)
        by_time = config.modulates_text and config.use_prompt_adaln_single
        self.gate_scale = (
            config.cross_attn_timestep_scale_multiplier / config.timestep_scale_multiplier
        )
        self.tokens_in = linear(own.channels, own.width, (None, "embed"), **kinds)
        self.text_in = (
            TextProjection(config.caption_channels, own.width, **kinds)
            if config.use_prompt_embeddings
            else None
        )
        self.time = times(own.width, own.vectors)
        self.text_time = times(own.context, 2) if by_time else None
        self.cross_time, self.gate_time = times(own.width, 4), times(own.width, 1)
        self.table = table(2, own.width, **kinds)
        self.tokens_out = linear(own.width, own.channels, ("embed", None), **kinds)

    def enter(self, latents: Float[Array, "batch tokens channels"]) -> Tokens:
        """Make tokens of latents."""
        return split(self.tokens_in(latents.astype(self.tokens_in.kernel.dtype)), *SPLIT)

    def context(
        self, text: Tokens, times: Times, turns: tuple[HeadTurns, HeadTurns]
    ) -> tuple[StreamContext, Array]:
        """Return the context of every block, and the embedded time.

        Args:
            turns: of the stream, and of it as the other one meets it.
        """
        text = text.astype(self.tokens_in.kernel.dtype)
        vectors, embedded = self.time(times.own)
        crossing, _ = self.cross_time(times.crossing)
        gate, _ = self.gate_time(times.crossing * self.gate_scale)
        text_vectors = None if self.text_time is None else self.text_time(times.text)[0]
        text = text if self.text_in is None else self.text_in(text)
        return StreamContext(vectors, crossing, gate, text, text_vectors, *turns), embedded

    def leave(
        self, x: Tokens, embedded: Float[Array, "batch times width"]
    ) -> Float[Array, "batch tokens channels"]:
        """Make a velocity of the tokens behind the last block."""
        shift, scale = moved(self.table[...], embedded[:, :, None])
        return self.tokens_out(layer_norm(x, OUT_EPSILON) * (1 + scale) + shift)


class LTX2Transformer(nnx.Module):
    """Latents of video and audio, texts and times to velocities."""

    def __init__(
        self, config: LTX2Config, *, rngs: nnx.Rngs, param_dtype: DTypeLike = jnp.float32
    ) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        self.config = config
        self.video = StreamEnds(config, config.video, **kinds)
        self.audio = StreamEnds(config, config.audio, **kinds)
        self.blocks = stack(
            lambda rngs: AudioVideoBlock(config, rngs=rngs, param_dtype=param_dtype),
            config.num_layers,
            rngs,
        )

    def __call__(
        self,
        latents: tuple[Tokens, Others],
        contexts: Contexts,
        times: tuple[Times, Times],
        places: Places,
        perturbed: Perturbed | None = None,
    ) -> Velocities:
        """Compute the velocities of video and audio, in the dtype of the weights.

        Args:
            latents: tokens of video (frame by frame, row by row) and of audio.
            perturbed: rows to guide away from; None: none.

        Raises: ValueError: blocks of `perturbed` that the network was not made for.
        """
        of_video, of_audio = self.turns(places)
        video, seen_at = self.video.context(contexts.video, times[0], of_video)
        audio, heard_at = self.audio.context(contexts.audio, times[1], of_audio)
        of_streams = (video, audio)
        x = (self.video.enter(latents[0]), self.audio.enter(latents[1]))
        apart = None if perturbed is None else perturbed.apart
        (seen, heard), _ = scan(
            self.blocks,
            x,
            lambda block, x, *alone: block(x, of_streams, *(alone or (None,)), apart),
            *self._alone(perturbed),
        )
        return Velocities(self.video.leave(seen, seen_at), self.audio.leave(heard, heard_at))

    def _alone(self, perturbed: Perturbed | None) -> tuple[Bool[Array, "layers batch"], ...]:
        """Return the rows without self-attention by block; nothing where none is.

        Raises: ValueError: a network that was not made for it, or a block that it has not.
        """
        if perturbed is None or not perturbed.blocks:
            return ()
        blocks = perturbed.blocks
        if not self.config.perturbed_attn or not {*blocks} <= {*range(self.config.num_layers)}:
            raise ValueError(
                f"blocks {sorted(blocks)} cannot be without self-attention: perturbed_attn is "
                f"{self.config.perturbed_attn}, and there are {self.config.num_layers} blocks"
            )
        there = jnp.isin(jnp.arange(self.config.num_layers), jnp.array(sorted(blocks)))
        return (there[:, None] & perturbed.alone,)

    def turns(self, places: Places) -> tuple[tuple[HeadTurns, HeadTurns], ...]:
        """Return turns of each stream, and of each as the other meets it: by time alone."""
        config = self.config
        seconds = max(config.pos_embed_max_pos, config.audio_pos_embed_max_pos)
        video = video_places(config, places.grid, places.fps)
        audio = audio_places(config, places.audio_latents)
        spans = (config.pos_embed_max_pos, config.base_height, config.base_width)
        return (
            (self._turns(video, spans, config.video), self._met(video, seconds)),
            (
                self._turns(audio, (config.audio_pos_embed_max_pos,), config.audio),
                self._met(audio, seconds),
            ),
        )

    def _met(self, places: np.ndarray, seconds: int) -> HeadTurns:
        return self._turns(places[:, :1], (seconds,), self.config.audio)

    def _turns(self, places: np.ndarray, spans: tuple[int, ...], stream: StreamSizes) -> HeadTurns:
        fractions = places / np.array(spans, np.float32)
        kind, theta = self.config.rope_type, self.config.rope_theta
        return turns_of(fractions, kind, stream.heads, stream.head_dim, theta)


def table(count: int, width: int, *, rngs: nnx.Rngs, param_dtype: DTypeLike) -> nnx.Param:
    """`count` learned vectors, the modulation where the shared vectors are zero."""
    vectors = jax.random.normal(rngs.params(), (count, width), param_dtype)
    return nnx.Param(vectors / width**0.5, axes=(None, "embed"))


def moved(
    own: Float[Array, "count width"], vectors: Float[Array, "batch times _count width"]
) -> list[Float[Array, "batch times width"]]:
    """Return shared vectors, moved by a block's own.

    Source: Chen et al. 2023 (PixArt-α), section 2.3.
    """
    both = own.astype(vectors.dtype) + vectors
    return [both[:, :, index] for index in range(len(own))]
