"""The Flux transformer: velocity of packed latents from text, time and guidance.

Source: Black Forest Labs, FLUX.1 (flux/model.py, flux/modules/layers.py), in the parametrisation
of diffusers' FluxTransformer2DModel. Blocks are stacked and scanned (models/nn/stack.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from models.flux.config import FluxConfig
from models.nn import tokens
from models.nn.attention import TokenAttention, token_attention
from models.nn.embeddings import ConditionMLP, sinusoid
from models.nn.layers import from_heads, linear, to_heads
from models.nn.norms import Modulation, RMSNorm, modulate
from models.nn.rope import RopeTable, apply_rope, rope_table
from models.nn.stack import scan, stack
from models.sharding import split

Tokens = Float[Array, "batch tokens width"]
ByHead = Float[Array, "batch tokens heads dim"]
Vector = Float[Array, "batch width"]
Streams = tuple[Float[Array, "batch image_tokens width"], Float[Array, "batch text_tokens width"]]

AXES = ("batch", "tokens", None)


class Places(NamedTuple):
    """Of the joined tokens: their angles, and which of them count (None: all)."""

    rope: RopeTable
    keys: np.ndarray | None


TIME_FEATURES = 256
"""Width of the sinusoids of timestep and guidance; fixed in every Flux."""


def fit_float16(x: Tokens) -> Tokens:
    """Float16 activations of the residual stream, kept from overflowing to infinity."""
    return jnp.clip(x, -65504, 65504) if x.dtype == jnp.float16 else x


class Heads(nnx.Module):
    """Queries, keys and values of one stream, normed by head."""

    def __init__(self, config: FluxConfig, *, rngs: nnx.Rngs, param_dtype: DTypeLike) -> None:
        def project() -> nnx.Linear:
            axes = ("embed", "heads")
            return linear(config.width, config.width, axes, rngs=rngs, param_dtype=param_dtype)

        def norm() -> RMSNorm:
            return RMSNorm(config.attention_head_dim, 1e-6, rngs=rngs, param_dtype=param_dtype)

        self.q, self.k, self.v = project(), project(), project()
        self.q_norm, self.k_norm = norm(), norm()
        self.heads = config.num_attention_heads

    def __call__(self, x: Tokens) -> tuple[Array, Array, Array]:
        q, k, v = (to_heads(project, x, self.heads) for project in (self.q, self.k, self.v))
        return self.q_norm(q), self.k_norm(k), v


class FeedForward(nnx.Module):
    """Four times as wide in the middle, tanh GELU."""

    def __init__(self, width: int, *, rngs: nnx.Rngs, param_dtype: DTypeLike) -> None:
        self.up = linear(width, 4 * width, ("embed", "mlp"), rngs=rngs, param_dtype=param_dtype)
        self.down = linear(4 * width, width, ("mlp", "embed"), rngs=rngs, param_dtype=param_dtype)

    def __call__(self, x: Tokens) -> Tokens:
        return self.down(jax.nn.gelu(self.up(x), approximate=True))


class Stream(nnx.Module):
    """One of the two streams of a double block: everything but the attention they share."""

    def __init__(self, config: FluxConfig, *, rngs: nnx.Rngs, param_dtype: DTypeLike) -> None:
        width = config.width
        self.modulation = Modulation(width, 6, rngs=rngs, param_dtype=param_dtype)
        self.attention = Heads(config, rngs=rngs, param_dtype=param_dtype)
        self.out = linear(width, width, ("heads", "embed"), rngs=rngs, param_dtype=param_dtype)
        self.feed_forward = FeedForward(width, rngs=rngs, param_dtype=param_dtype)

    def finish(self, x: Tokens, attended: ByHead, modulation: list[Array]) -> Tokens:
        _, _, gate, mlp_shift, mlp_scale, mlp_gate = modulation
        x = x + gate * from_heads(self.out, attended)
        x = fit_float16(x + mlp_gate * self.feed_forward(modulate(x, mlp_shift, mlp_scale)))
        return split(x, *AXES)


class DoubleBlock(nnx.Module):
    """Picture and text in streams of their own, joined by one attention over both."""

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

    def __call__(self, streams: Streams, condition: Vector, places: Places) -> Streams:
        image, text = streams
        image_mod, text_mod = self.image.modulation(condition), self.text.modulation(condition)
        image_qkv = self.image.attention(modulate(image, *image_mod[:2]))
        text_qkv = self.text.attention(modulate(text, *text_mod[:2]))
        q, k, v = (tokens.join(pair) for pair in zip(text_qkv, image_qkv, strict=True))
        q, k = (apply_rope(x, places.rope) for x in (q, k))
        attended = self.attention(q, k, v, keys=places.keys)
        of_text, of_image = tokens.cut(attended, text.shape[1], image.shape[1])
        return (
            self.image.finish(image, of_image, image_mod),
            self.text.finish(text, of_text, text_mod),
        )


class SingleBlock(nnx.Module):
    """Attention and feed-forward side by side on one stream of text and picture."""

    def __init__(
        self,
        config: FluxConfig,
        attention: TokenAttention,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike,
    ) -> None:
        width = config.width
        self.modulation = Modulation(width, 3, rngs=rngs, param_dtype=param_dtype)
        self.heads = Heads(config, rngs=rngs, param_dtype=param_dtype)
        self.up = linear(width, 4 * width, ("embed", "mlp"), rngs=rngs, param_dtype=param_dtype)
        self.down = linear(5 * width, width, ("mlp", "embed"), rngs=rngs, param_dtype=param_dtype)
        self.attention = attention

    def __call__(self, x: Tokens, condition: Vector, places: Places) -> Tokens:
        shift, scale, gate = self.modulation(condition)
        normed = modulate(x, shift, scale)
        q, k, v = self.heads(normed)
        q, k = (apply_rope(x, places.rope) for x in (q, k))
        attended = self.attention(q, k, v, keys=places.keys)
        wide = jax.nn.gelu(self.up(normed), approximate=True)
        joined = jnp.concatenate([attended.reshape(x.shape), wide], axis=-1)
        return split(fit_float16(x + gate * self.down(joined)), *AXES)


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

        def condition(in_features: int) -> ConditionMLP:
            return ConditionMLP(in_features, width, rngs=rngs, **kinds)

        self.config = config
        self.latents_in = linear(config.in_channels, width, (None, "embed"), rngs=rngs, **kinds)
        self.text_in = linear(
            config.joint_attention_dim, width, (None, "embed"), rngs=rngs, **kinds
        )
        self.time_in = condition(TIME_FEATURES)
        self.guidance_in = condition(TIME_FEATURES) if config.guidance_embeds else None
        self.pooled_in = condition(config.pooled_projection_dim)
        self.double_blocks = _stack(DoubleBlock, config.num_layers, config, attention, rngs, kinds)
        self.single_blocks = _stack(
            SingleBlock, config.num_single_layers, config, attention, rngs, kinds
        )
        self.out_modulation = Modulation(width, 2, rngs=rngs, **kinds)
        self.latents_out = linear(width, config.in_channels, ("embed", None), rngs=rngs, **kinds)

    def __call__(
        self,
        latents: Float[Array, "batch image_tokens channels"],
        prompt_embeds: Float[Array, "batch text_tokens joint"],
        pooled_embeds: Float[Array, "batch pooled"],
        timestep: Float[Array, " batch"],
        guidance: Float[Array, " batch"] | None,
        image_ids: np.ndarray,
        text_ids: np.ndarray,
    ) -> Float[Array, "batch image_tokens channels"]:
        """Velocity of the latents, in the dtype of the weights.

        Args:
            timestep: 1000 · sigma, 0 to 1000, float32.
            guidance: the guidance scale as the user gives it, float32; read only by networks with
                a guidance embedding, which must be given one.
            image_ids, text_ids: positions, [tokens, 3], on the host: they are part of the shape.
        """
        dtype = self.latents_in.kernel.dtype
        condition = self.condition(timestep, guidance, pooled_embeds)
        places = self.places(text_ids, image_ids)
        image, text = (split(tokens.pad(x.astype(dtype)), *AXES) for x in (latents, prompt_embeds))
        streams = self.latents_in(image), self.text_in(text)
        image, text = _run(self.double_blocks, streams, condition, places)
        both = tokens.join([text, image])
        both = _run(self.single_blocks, both, condition, places)
        _, image = tokens.cut(both, text.shape[1], image.shape[1])
        scale, shift = self.out_modulation(condition)
        velocity = self.latents_out(modulate(image, shift, scale))
        return velocity[:, : latents.shape[1]]

    def places(self, *ids: np.ndarray) -> Places:
        """Of tokens at these positions, [tokens, 3], joined in this order."""
        padded = [np.pad(part, ((0, tokens.padding(len(part))), (0, 0))) for part in ids]
        rope = rope_table(tokens.join_host(padded), self.config.axes_dims_rope)
        return Places(rope, tokens.counted(*map(len, ids)))

    def condition(
        self,
        timestep: Float[Array, " batch"],
        guidance: Float[Array, " batch"] | None,
        pooled_embeds: Float[Array, "batch pooled"],
    ) -> Vector:
        """The vector that modulates every block: time + guidance + pooled text."""
        vector = self.time_in(sinusoid(timestep, TIME_FEATURES))
        if self.guidance_in is not None:
            if guidance is None:
                raise ValueError("this transformer has a guidance embedding: give it a guidance")
            vector = vector + self.guidance_in(sinusoid(1000 * guidance, TIME_FEATURES))
        return vector + self.pooled_in(pooled_embeds)


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


def _run(blocks: nnx.Module | None, carry: Any, condition: Vector, places: Places) -> Any:
    if blocks is None:
        return carry
    return scan(blocks, carry, lambda block, x: block(x, condition, places))[0]
