"""The Z-Image transformer: velocity of packed latents from a caption and time, in one stream.

Source: Cai et al. 2025 (Z-Image), section 3; diffusers' ZImageTransformer2DModel for the
parametrisation. Blocks are stacked and scanned (models/nn/layers/scanned.py).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from models.nn.attention.attention import TokenAttention, token_attention
from models.nn.layers import padded_tokens
from models.nn.layers.embeddings import ConditionMLP, sinusoid
from models.nn.layers.norms import RMSNorm, layer_norm
from models.nn.layers.padded_tokens import Positions
from models.nn.layers.parameterised import Kinds, activated, from_heads, linear, to_heads
from models.nn.layers.rope import RopeTable, apply_rope, rope_table
from models.nn.layers.scanned import layers_of, scan, stack
from models.nn.layers.step_cache import CachedStep, Entered
from models.parallel.placement import split
from models.parallel.trace_options import trace_options
from models.zimage.config import MULTIPLE, PATCH, ZImageConfig, filled

Tokens = Float[Array, "batch tokens width"]
Vector = Float[Array, "batch condition"]

AXES = ("batch", "tokens", None)
TIME_FEATURES, TIME_INNER = 256, 1024
"""Width of the timestep's sinusoids, and in the middle of its layers; fixed in every Z-Image."""
HEAD_EPSILON = 1e-5


class Streams(NamedTuple):
    """Image and caption before they meet, and what all layers behind are told."""

    image: Tokens
    text: Tokens
    condition: Vector
    image_positions: Positions
    text_positions: Positions


class SingleStreamBlock(nnx.Module):
    """Attention and feed-forward between norms; modulated by scales and gates, or not."""

    def __init__(
        self,
        config: ZImageConfig,
        attention: TokenAttention,
        *,
        modulated: bool,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike,
    ) -> None:
        width, kinds = config.dim, Kinds(rngs=rngs, param_dtype=param_dtype)
        project = partial(linear, use_bias=False, **kinds)
        norm = partial(RMSNorm, width, config.norm_eps, **kinds)
        by_head = partial(RMSNorm, width // config.n_heads, HEAD_EPSILON, **kinds)
        self.heads, self.attention = config.n_heads, attention
        self.q, self.k, self.v = (project(width, width, ("embed", "heads")) for _ in "qkv")
        self.out = project(width, width, ("heads", "embed"))
        self.q_norm, self.k_norm = (by_head() if config.qk_norm else None for _ in "qk")
        self.gate, self.up = (project(width, config.inner, ("embed", "mlp")) for _ in range(2))
        self.down = project(config.inner, width, ("mlp", "embed"))
        self.attention_in, self.attention_out = norm(), norm()
        self.feed_forward_in, self.feed_forward_out = norm(), norm()
        axes = ("embed", "modulation")
        self.modulation = linear(config.condition, 4 * width, axes, **kinds) if modulated else None

    def __call__(self, x: Tokens, condition: Vector | None, positions: Positions) -> Tokens:
        """Attend, then feed forward."""
        scale, gate, wide_scale, wide_gate = self._modulations(condition)
        found = self._attend(self.attention_in(x) * scale, positions)
        x = x + gate * self.attention_out(found)
        normed = self.feed_forward_in(x) * wide_scale
        wide = activated(self.gate, normed, jax.nn.silu) * self.up(normed)
        return split(x + wide_gate * self.feed_forward_out(self.down(wide)), *AXES)

    def seen(self, x: Tokens, condition: Vector) -> Tokens:
        """Return tokens as the block's attention sees them."""
        return self.attention_in(x) * self._modulations(condition)[0]

    def _modulations(self, condition: Vector | None) -> tuple[Array | float, ...]:
        """Return scale and gate of the attention, then of the feed-forward."""
        if self.modulation is None or condition is None:
            return 1.0, 1.0, 1.0, 1.0
        options = trace_options()
        # It waits for its weights alone.
        with replace(options, quant=options.quant and "w8a16").active():
            vectors = self.modulation(condition)
        scale, gate, wide_scale, wide_gate = jnp.split(vectors[:, None], 4, axis=-1)
        return 1 + scale, jnp.tanh(gate), 1 + wide_scale, jnp.tanh(wide_gate)

    def _attend(self, x: Tokens, positions: Positions) -> Tokens:
        q, k = (to_heads(project, x, self.heads) for project in (self.q, self.k))
        v = to_heads(self.v, x, self.heads, upright=True)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = (apply_rope(one, positions.rope) for one in (q, k))
        return from_heads(self.out, self.attention(q, k, v, keys=positions.keys))


class ZImageTransformer(nnx.Module):
    """Packed latents, captions and time to velocity."""

    def __init__(
        self,
        config: ZImageConfig,
        attention: TokenAttention = token_attention,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
    ) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        width, patch = config.dim, PATCH**2 * config.in_channels

        def blocks(layers: int, *, modulated: bool) -> nnx.Module | None:
            def make(rngs: nnx.Rngs) -> SingleStreamBlock:
                return SingleStreamBlock(
                    config, attention, modulated=modulated, rngs=rngs, param_dtype=param_dtype
                )

            return stack(make, layers, rngs) if layers else None

        self.config = config
        self.latents_in = linear(patch, width, (None, "embed"), **kinds)
        self.text_norm = RMSNorm(config.cap_feat_dim, config.norm_eps, **kinds)
        self.text_in = linear(config.cap_feat_dim, width, (None, "embed"), **kinds)
        self.time_in = ConditionMLP(TIME_FEATURES, config.condition, inner=TIME_INNER, **kinds)
        self.image_filling, self.text_filling = (
            nnx.Param(jnp.zeros((1, width), param_dtype), axes=(None, "embed")) for _ in range(2)
        )
        self.image_blocks = blocks(config.n_refiner_layers, modulated=True)
        self.text_blocks = blocks(config.n_refiner_layers, modulated=False)
        self.blocks = blocks(config.n_layers, modulated=True)
        self.out_modulation = linear(config.condition, width, ("embed", "modulation"), **kinds)
        self.latents_out = linear(width, patch, ("embed", None), **kinds)

    def __call__(
        self,
        latents: Float[Array, "batch image_tokens patch"],
        captions: Float[Array, "batch text_tokens features"],
        lengths: Int[Array, " batch"],
        timestep: Float[Array, " batch"],
        grid: tuple[int, int],
        cache: CachedStep | None = None,
    ) -> Float[Array, "batch image_tokens patch"]:
        """Velocity of the latents, in the dtype of the weights.

        Args:
            captions: features of the text encoder, padded to a multiple of 32.
            lengths: of the captions, in tokens without padding.
            timestep: t_scale times 0 (noise) to 1 (image), float32.
            grid: rows and columns of the latents before they were packed.
            cache: of earlier steps, where most blocks may be left out.
        """
        streams = self._entered(latents, captions, lengths, timestep, grid)
        positions = _joined(streams)
        both = padded_tokens.join([streams.image, streams.text])
        if cache is None:
            both = _run(self.blocks, both, streams.condition, positions)
            image = self._image_of(both, streams)
        else:
            image = self._run_cached(cache, both, streams, positions)
        scale = 1 + self.out_modulation(jax.nn.silu(streams.condition))
        velocity = self.latents_out(layer_norm(image, 1e-6) * scale[:, None])
        return velocity[:, : latents.shape[1]]

    def _entered(
        self, latents: Array, captions: Array, lengths: Array, timestep: Array, grid: Any
    ) -> Streams:
        """Embed and refine image and caption, each on its own."""
        dtype, count = self.latents_in.kernel.dtype, latents.shape[1]
        whole = -(-lengths // MULTIPLE) * MULTIPLE
        condition = self.time_in(sinusoid(timestep, TIME_FEATURES))
        more = filled(count) - count
        latents = jnp.pad(latents.astype(dtype), ((0, 0), (0, more), (0, 0)))
        image = self.latents_in(split(padded_tokens.pad(latents), *AXES))
        own = jnp.arange(image.shape[1])[:, None] < count
        image = jnp.where(own, image, self.image_filling[...])
        captions = split(padded_tokens.pad(captions.astype(dtype)), *AXES)
        text = self.text_in(self.text_norm(captions))
        read = jnp.arange(text.shape[1]) < lengths[:, None]
        text = jnp.where(read[..., None], text, self.text_filling[...])
        of_image = self._image_positions(grid, whole, captions.shape[1])
        of_text = self._text_positions(whole, text.shape[1])
        image = _run(self.image_blocks, image, condition, of_image)
        text = _run(self.text_blocks, text, None, of_text)
        return Streams(image, text, condition, of_image, of_text)

    def _image_positions(
        self, grid: tuple[int, int], whole: Int[Array, " batch"], text_tokens: int
    ) -> Positions:
        """Positions behind each row's caption; what fills the image up is at zero."""
        rows, columns = np.mgrid[: grid[0] // PATCH, : grid[1] // PATCH].reshape(2, -1)
        count = len(rows)
        total = filled(count) + padded_tokens.padding(filled(count))
        ids = np.pad(np.stack([rows, columns], axis=-1), ((0, total - count), (0, 0)))
        first, *others = self.config.axes_dims
        places = self._rope(np.arange(text_tokens + 2)[:, None], first)
        own, on_grid = (np.arange(total) < count)[:, None], self._rope(ids, *others)

        def joined(by_place: Any, by_id: Any) -> Array:
            table = jnp.asarray(by_place)
            behind = jnp.where(own, table[whole + 1][:, None], table[0])
            return jnp.concatenate([behind, _for_each(by_id, len(whole))], axis=-1)

        rope = RopeTable(*map(joined, places, on_grid))
        return Positions(rope, padded_tokens.counted(filled(count)))

    def _text_positions(self, whole: Int[Array, " batch"], tokens: int) -> Positions:
        """Positions from 1 on; a caption and what fills it up count, padding does not."""
        ids = np.zeros((tokens, 3), int)
        ids[:, 0] = np.arange(tokens) + 1
        rope = self._rope(ids, *self.config.axes_dims)
        keys = jnp.arange(tokens) < whole[:, None]
        return Positions(RopeTable(*(_for_each(part, len(whole)) for part in rope)), keys)

    def _rope(self, ids: np.ndarray, *dims: int) -> RopeTable:
        return rope_table(ids, dims, self.config.rope_theta)

    def _image_of(self, both: Tokens, streams: Streams) -> Tokens:
        return padded_tokens.cut(both, streams.image.shape[1], streams.text.shape[1])[0]

    def _run_cached(
        self, cache: CachedStep, both: Tokens, streams: Streams, positions: Positions
    ) -> Tokens:
        assert self.blocks is not None  # every checkpoint has them
        first = 1 if cache.kind == "first-block" else 0
        if first:
            both = _run(self.blocks, both, streams.condition, positions, stop=first)
            entered = self._image_of(both, streams)
            signal = entered - streams.image
        else:
            entered = streams.image
            signal, _ = scan(
                self.blocks, entered, lambda b, x: b.seen(x, streams.condition), between=(0, 1)
            )

        def rest(both: Tokens, others: tuple[Vector, Positions]) -> Tokens:
            return self._image_of(_run(self.blocks, both, *others, first=first), streams)

        return cache.run(Entered(both, entered, signal), (streams.condition, positions), rest)


def _joined(streams: Streams) -> Positions:
    """Positions of both streams, those of the image first; each row has its own."""
    image, text = streams.image_positions, streams.text_positions
    keys = np.ones(streams.image.shape[1], bool) if image.keys is None else image.keys
    both = padded_tokens.join([_for_each(keys, len(streams.image)), jnp.asarray(text.keys)])
    cos, sin = (
        padded_tokens.join([jnp.asarray(part) for part in pair])
        for pair in zip(image.rope, text.rope, strict=True)
    )
    return Positions(RopeTable(cos, sin), both)


def _for_each(x: Any, batch: int) -> Array:
    """Repeat what all rows share."""
    return jnp.broadcast_to(jnp.asarray(x), (batch, *x.shape))


def _run(
    blocks: nnx.Module | None,
    x: Tokens,
    condition: Vector | None,
    positions: Positions,
    first: int = 0,
    stop: int | None = None,
) -> Tokens:
    """Run blocks from one on, up to another; without any it stays as it is."""
    if blocks is None:
        return x
    between = (first, stop or layers_of(blocks)) if first or stop else None
    return scan(blocks, x, lambda block, x: block(x, condition, positions), between=between)[0]
