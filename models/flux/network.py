"""The Flux transformer: velocity of packed latents from text, time and guidance.

Source: Black Forest Labs, FLUX.1 (flux/model.py, flux/modules/layers.py), in the parametrisation
of diffusers' FluxTransformer2DModel. Blocks are stacked and scanned (models/nn/layers/scanned.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from models.flux.conditioning import Conditions, Modulations, OfLayers
from models.flux.config import FluxConfig
from models.nn.attention.attention import TokenAttention, token_attention
from models.nn.layers import padded_tokens
from models.nn.layers.activations import tanh_gelu
from models.nn.layers.norms import RMSNorm, modulate
from models.nn.layers.padded_tokens import Positions
from models.nn.layers.parameterised import (
    Linear,
    activated,
    from_heads,
    linear,
    of_joined,
    to_heads,
)
from models.nn.layers.rope import apply_rope, rope_table
from models.nn.layers.scanned import layers_of, scan, stack
from models.nn.layers.step_cache import CachedStep, Entered
from models.parallel.placement import split

Tokens = Float[Array, "batch tokens width"]
ByHead = Float[Array, "batch tokens heads dim"]
Vectors = Float[Array, "batch vectors width"]
"""Vectors that modulate one layer."""
Streams = tuple[Float[Array, "batch image_tokens width"], Float[Array, "batch text_tokens width"]]

AXES = ("batch", "tokens", None)


def fit_float16(x: Tokens) -> Tokens:
    """Float16 activations of the residual stream, kept from overflowing to infinity."""
    return jnp.clip(x, -65504, 65504) if x.dtype == jnp.float16 else x


class JointHeads(nnx.Module):
    """Queries, keys and values of one stream, normed by head."""

    def __init__(self, config: FluxConfig, *, rngs: nnx.Rngs, param_dtype: DTypeLike) -> None:
        def project() -> Linear:
            axes = ("embed", "heads")
            return linear(config.width, config.width, axes, rngs=rngs, param_dtype=param_dtype)

        def norm() -> RMSNorm:
            return RMSNorm(config.attention_head_dim, 1e-6, rngs=rngs, param_dtype=param_dtype)

        self.q, self.k, self.v = project(), project(), project()
        self.q_norm, self.k_norm = norm(), norm()
        self.heads = config.num_attention_heads

    def __call__(self, x: Tokens) -> tuple[Array, Array, Array]:
        """Project tokens to queries, keys and values."""
        q, k = (to_heads(project, x, self.heads) for project in (self.q, self.k))
        v = to_heads(self.v, x, self.heads, upright=True)
        return self.q_norm(q), self.k_norm(k), v


class FluxFeedForward(nnx.Module):
    """Four times as wide in the middle, tanh GELU."""

    def __init__(self, width: int, *, rngs: nnx.Rngs, param_dtype: DTypeLike) -> None:
        self.up = linear(width, 4 * width, ("embed", "mlp"), rngs=rngs, param_dtype=param_dtype)
        self.down = linear(4 * width, width, ("mlp", "embed"), rngs=rngs, param_dtype=param_dtype)

    def __call__(self, x: Tokens) -> Tokens:
        """Apply the layers to each token."""
        return self.down(activated(self.up, x, tanh_gelu))


class Stream(nnx.Module):
    """Stream of a double block: everything but the attention that both share."""

    def __init__(self, config: FluxConfig, *, rngs: nnx.Rngs, param_dtype: DTypeLike) -> None:
        width = config.width
        self.attention = JointHeads(config, rngs=rngs, param_dtype=param_dtype)
        self.out = linear(width, width, ("heads", "embed"), rngs=rngs, param_dtype=param_dtype)
        self.feed_forward = FluxFeedForward(width, rngs=rngs, param_dtype=param_dtype)

    def finish(self, x: Tokens, attended: ByHead, modulation: list[Array]) -> Tokens:
        """Add the attention's output and the feed-forward's to the stream."""
        _, _, gate, mlp_shift, mlp_scale, mlp_gate = modulation
        x = x + gate * from_heads(self.out, attended)
        x = fit_float16(x + mlp_gate * self.feed_forward(modulate(x, mlp_shift, mlp_scale)))
        return split(x, *AXES)


class DoubleBlock(nnx.Module):
    """Image and text in streams of their own, joined by one attention over both."""

    def __init__(
        self,
        config: FluxConfig,
        attention: TokenAttention,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike,
    ) -> None:
        self.image = Stream(config, rngs=rngs, param_dtype=param_dtype)
        self.text = Stream(config, rngs=rngs, param_dtype=param_dtype)
        self.attention = attention

    def __call__(
        self, streams: Streams, of_image: Vectors, of_text: Vectors, positions: Positions
    ) -> Streams:
        """Attend over both streams together; the rest is each one's own."""
        image, text = streams
        image_mod, text_mod = one_by_one(of_image), one_by_one(of_text)
        image_qkv = self.image.attention(modulate(image, *image_mod[:2]))
        text_qkv = self.text.attention(modulate(text, *text_mod[:2]))
        q, k, v = (padded_tokens.join(pair) for pair in zip(text_qkv, image_qkv, strict=True))
        q, k = (apply_rope(x, positions.rope) for x in (q, k))
        attended = self.attention(q, k, v, keys=positions.keys)
        text_found, image_found = padded_tokens.cut(attended, text.shape[1], image.shape[1])
        return (
            self.image.finish(image, image_found, image_mod),
            self.text.finish(text, text_found, text_mod),
        )

    def seen(self, image: Tokens, of_image: Vectors) -> Tokens:
        """Return the image as the block's attention sees it."""
        return modulate(image, *one_by_one(of_image)[:2])


class SingleBlock(nnx.Module):
    """Attention and feed-forward side by side on one stream of text and image."""

    def __init__(
        self,
        config: FluxConfig,
        attention: TokenAttention,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike,
    ) -> None:
        width = config.width
        self.heads = JointHeads(config, rngs=rngs, param_dtype=param_dtype)
        self.up = linear(width, 4 * width, ("embed", "mlp"), rngs=rngs, param_dtype=param_dtype)
        self.down = linear(5 * width, width, ("mlp", "embed"), rngs=rngs, param_dtype=param_dtype)
        self.attention = attention

    def __call__(self, x: Tokens, vectors: Vectors, positions: Positions) -> Tokens:
        """Attend and feed forward side by side, over the joined streams."""
        shift, scale, gate = one_by_one(vectors)
        normed = modulate(x, shift, scale)
        q, k, v = self.heads(normed)
        q, k = (apply_rope(x, positions.rope) for x in (q, k))
        attended = self.attention(q, k, v, keys=positions.keys)
        wide = activated(self.up, normed, tanh_gelu)
        found = of_joined(self.down, [attended, wide])
        return split(fit_float16(x + gate * found), *AXES)


class FluxTransformer(nnx.Module):
    """Packed latents and conditions to velocity."""

    def __init__(
        self,
        config: FluxConfig,
        attention: TokenAttention = token_attention,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
    ) -> None:
        width = config.width
        kinds: dict[str, Any] = {"param_dtype": param_dtype}

        self.config = config
        self.latents_in = linear(config.in_channels, width, (None, "embed"), rngs=rngs, **kinds)
        self.text_in = linear(
            config.joint_attention_dim, width, (None, "embed"), rngs=rngs, **kinds
        )
        self.conditions = Conditions(config, rngs=rngs, **kinds)
        self.double_blocks = _stack(DoubleBlock, config.num_layers, config, attention, rngs, kinds)
        self.single_blocks = _stack(
            SingleBlock, config.num_single_layers, config, attention, rngs, kinds
        )
        self.latents_out = linear(width, config.velocity, ("embed", None), rngs=rngs, **kinds)

    def __call__(
        self,
        latents: Float[Array, "batch image_tokens channels"],
        prompt_embeds: Float[Array, "batch text_tokens joint"],
        pooled_embeds: Float[Array, "batch pooled"],
        timestep: Float[Array, " batch"],
        guidance: Float[Array, " batch"] | None,
        image_ids: np.ndarray,
        text_ids: np.ndarray,
    ) -> Float[Array, "batch image_tokens velocity"]:
        """Compute `velocity` with the modulations of `conditions`."""
        modulations = self.conditions(timestep, guidance, pooled_embeds)
        return self.velocity(latents, prompt_embeds, modulations, image_ids, text_ids)

    def velocity(
        self,
        latents: Float[Array, "batch image_tokens channels"],
        prompt_embeds: Float[Array, "batch text_tokens joint"],
        modulations: Modulations,
        image_ids: np.ndarray,
        text_ids: np.ndarray,
        cache: CachedStep | None = None,
        text_keys: Bool[Array, "batch text_tokens"] | None = None,
    ) -> Float[Array, "batch image_tokens velocity"]:
        """Velocity of the latents, in the dtype of the weights.

        Args:
            modulations: as `conditions` gives them, of the timestep, guidance and pooled text.
            image_ids, text_ids: positions, [tokens, 3], on the host: they are part of the shape.
            cache: of earlier steps, where most blocks may be left out.
            text_keys: text tokens that count, row by row; None: all.
        """
        dtype = self.latents_in.kernel.dtype
        positions = self.positions(text_ids, image_ids)
        if text_keys is not None:
            positions = positions._replace(keys=keys_of_rows(text_keys, len(image_ids)))
        image, text = (
            split(padded_tokens.pad(x.astype(dtype)), *AXES) for x in (latents, prompt_embeds)
        )
        streams = self.latents_in(image), self.text_in(text)
        if cache is None:
            image = self._run(streams, modulations, positions)
        else:
            image = self._run_cached(cache, streams, modulations, positions)
        scale, shift = one_by_one(modulations.out)
        velocity = self.latents_out(modulate(image, shift, scale))
        return velocity[:, : latents.shape[1]]

    def _run(
        self, streams: Streams, modulations: Modulations, positions: Positions, first: int = 0
    ) -> Tokens:
        """The image's tokens behind all blocks, from that double block on."""
        of_streams = modulations.image, modulations.text
        image, text = _run(self.double_blocks, streams, of_streams, positions, first)
        both = padded_tokens.join([text, image])
        both = _run(self.single_blocks, both, (modulations.single,), positions)
        return padded_tokens.cut(both, text.shape[1], image.shape[1])[1]

    def _run_cached(
        self, cache: CachedStep, streams: Streams, modulations: Modulations, positions: Positions
    ) -> Tokens:
        # `models.flux.load` offers no cache without any
        assert self.double_blocks is not None and modulations.image is not None
        before, _ = streams
        first = 1 if cache.kind == "first-block" else 0
        if first:
            of_streams = modulations.image, modulations.text
            streams = _run(self.double_blocks, streams, of_streams, positions, stop=first)
            signal = streams[0] - before
        else:
            signal, _ = scan(
                self.double_blocks,
                before,
                lambda block, x, of_image: block.seen(x, of_image),
                by_layer(modulations.image),
                between=(0, 1),
            )
        of_rows = positions.keys if isinstance(positions.keys, jax.Array) else None

        def rest(streams: Streams, others: tuple[Modulations, Array | None]) -> Tokens:
            modulations, keys = others
            own = positions if keys is None else positions._replace(keys=keys)
            return self._run(streams, modulations, own, first)

        return cache.run(Entered(streams, streams[0], signal), (modulations, of_rows), rest)

    def positions(self, *ids: np.ndarray) -> Positions:
        """Return positions of tokens at these ids, [tokens, 3], joined in this order."""
        padded = [np.pad(part, ((0, padded_tokens.padding(len(part))), (0, 0))) for part in ids]
        rope = rope_table(padded_tokens.join_host(padded), self.config.axes_dims_rope)
        return Positions(rope, padded_tokens.counted(*map(len, ids)))


def keys_of_rows(
    text: Bool[Array, "batch text_tokens"], image_tokens: int
) -> Bool[Array, "batch all"]:
    """Return the keys of each row that count: those of its text, and the image's."""
    image = jnp.ones((len(text), image_tokens), bool)
    return padded_tokens.join([padded_tokens.pad(text), padded_tokens.pad(image)])


def one_by_one(vectors: Vectors) -> list[Float[Array, "batch 1 width"]]:
    """Split vectors, each with an axis for the tokens."""
    return jnp.split(vectors, vectors.shape[1], axis=1)


def _stack(
    kind: Callable[..., nnx.Module],
    layers: int,
    config: FluxConfig,
    attention: TokenAttention,
    rngs: nnx.Rngs,
    kinds: dict[str, Any],
) -> nnx.Module | None:
    """The blocks of one kind, or None: a checkpoint may do without either kind."""
    if layers == 0:
        return None
    return stack(lambda rngs: kind(config, attention, rngs=rngs, **kinds), layers, rngs)


def _run(
    blocks: nnx.Module | None,
    carry: Any,
    modulations: tuple[OfLayers | None, ...],
    positions: Positions,
    first: int = 0,
    stop: int | None = None,
) -> Any:
    """Args: modulations: of all blocks, None where there are none."""
    if blocks is None:
        return carry
    between = (first, stop or layers_of(blocks)) if first or stop else None
    own = [by_layer(vectors) for vectors in modulations if vectors is not None]
    return scan(
        blocks, carry, lambda block, x, *own: block(x, *own, positions), *own, between=between
    )[0]


def by_layer(vectors: OfLayers) -> Float[Array, "layers batch vectors width"]:
    """Return vectors with the layers first."""
    return jnp.swapaxes(vectors, 0, 1)
