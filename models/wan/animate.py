"""The Animate transformer: Wan's, which sees poses in its tokens and attends to a face.

The first frame of its latents is the character's image. Poses are added to the tokens of all other
frames; behind every few blocks each frame's tokens attend to that frame of the face.

Source: Cheng et al. 2025, "Wan-Animate: Unified Character Animation and Replacement with Holistic
Replication", section 4, in the parametrisation of diffusers' WanAnimateTransformer3DModel.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from models.nn.attention.attention import CrossAttention as Crossing
from models.nn.attention.attention import TokenAttention, cross_attention, token_attention
from models.nn.layers.convolution import convolved
from models.nn.layers.norms import RMSNorm, layer_norm
from models.nn.layers.padded_tokens import Positions
from models.nn.layers.parameterised import conv, from_heads, linear, to_heads
from models.nn.layers.scanned import scan, stack
from models.nn.layers.step_cache import CachedStep, Entered
from models.parallel.placement import split
from models.wan.animate_config import AnimateConfig
from models.wan.network import SPLIT, BlockContext, Tokens, Video, WanBlock, WanTransformer

Face = Float[Array, "batch frames face_tokens width"]
HEADS = ("batch", "tokens", "heads", None)


class Guides(NamedTuple):
    """Poses and face that the character takes on."""

    pose: Video
    """Latents of the poses: a frame fewer than the noisy ones."""
    face: Face
    """Tokens of the face, for each frame of latents."""


class Guided(NamedTuple):
    """Tokens on their way through the blocks, and the face they attend to."""

    x: Tokens
    face: Face


class FaceAttention(nnx.Module):
    """Attention of each token to the face's few tokens of its own frame.

    Keys and values are looked up for each token, one token of the face after the other, so that
    tokens may be split anywhere.
    """

    def __init__(
        self, config: AnimateConfig, *, rngs: nnx.Rngs, param_dtype: DTypeLike = jnp.float32
    ) -> None:
        make = partial(linear, rngs=rngs, param_dtype=param_dtype)
        width, dim = config.width, config.attention_head_dim
        self.q = make(width, width, ("embed", "heads"))
        self.k = make(width, width, ("embed", "heads"))
        self.v = make(width, width, ("embed", "heads"))
        self.out = make(width, width, ("heads", "embed"))
        self.q_norm = RMSNorm(dim, config.eps, rngs=rngs, param_dtype=param_dtype)
        self.k_norm = RMSNorm(dim, config.eps, rngs=rngs, param_dtype=param_dtype)
        self.heads, self.epsilon = config.num_attention_heads, config.eps

    def __call__(self, x: Tokens, face: Face, frames: Int[np.ndarray, " tokens"]) -> Tokens:
        """Attend to the face.

        Args:
            frames: of each token.
        """
        seen = layer_norm(face, self.epsilon).reshape(len(face), -1, face.shape[-1])
        queries = to_heads(self.q, layer_norm(x, self.epsilon), self.heads)
        keys, values = (to_heads(layer, seen, self.heads) for layer in (self.k, self.v))
        queries, keys = self.q_norm(queries), self.k_norm(keys)
        keys, values = (one.reshape(*face.shape[:3], self.heads, -1) for one in (keys, values))

        def of_tokens(one: Array, number: int) -> Array:
            return split(one[:, frames, number], *HEADS)

        count, scale = face.shape[2], queries.shape[-1] ** -0.5
        product = partial(jnp.einsum, "bthd,bthd->bth", preferred_element_type=jnp.float32)
        logits = [product(queries, of_tokens(keys, number)) * scale for number in range(count)]
        weights = jax.nn.softmax(jnp.stack(logits), axis=0).astype(values.dtype)
        found = [weights[number, ..., None] * of_tokens(values, number) for number in range(count)]
        return from_heads(self.out, sum(found[1:], found[0]))


class AnimateTransformer(WanTransformer):
    """Video latents, conditions, poses and a face to velocity."""

    config: AnimateConfig

    def __init__(
        self,
        config: AnimateConfig,
        attention: TokenAttention = token_attention,
        cross_attention: Crossing = cross_attention,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
    ) -> None:
        super().__init__(config, attention, cross_attention, rngs=rngs, param_dtype=param_dtype)
        width, patch = config.width, config.patch_size
        self.pose_patches_in = conv(
            config.latent_channels, width, patch, strides=patch, rngs=rngs, param_dtype=param_dtype
        )
        self.face_adapters = stack(
            lambda rngs: FaceAttention(config, rngs=rngs, param_dtype=param_dtype),
            config.face_adapters,
            rngs,
        )

    def __call__(
        self,
        latents: Video,
        timestep: Float[Array, " batch *tokens"],
        prompt_embeds: Float[Array, "batch text_tokens text_dim"],
        image_embeds: Float[Array, "batch image_tokens image_dim"] | None = None,
        cache: CachedStep | None = None,
        guides: Guides | None = None,
    ) -> Float[Array, "batch frames rows columns out_channels"]:
        """Velocity of the latents, as `WanTransformer` has it.

        Raises:
            ValueError: there are no poses and no face, or not of the latents' frames; and what
                `WanTransformer` raises.
        """
        if guides is None:
            raise ValueError("poses and a face are needed")
        frames, *sides = latents.shape[1:4]
        if guides.pose.shape[1:4] != (frames - 1, *sides):
            raise ValueError(
                f"poses of {(frames - 1, *sides)} latents are needed: {guides.pose.shape[1:4]}"
            )
        if guides.face.shape[1] != frames:
            raise ValueError(f"{guides.face.shape[1]} frames of a face for {frames} of latents")
        inside = self.enter(latents, timestep, prompt_embeds, image_embeds)
        pose = convolved(self.pose_patches_in, guides.pose.astype(inside.x.dtype))
        pose = self.padded(jnp.pad(pose, ((0, 0), (1, 0), *[(0, 0)] * 3)))
        given = Guided(split(inside.x + pose, *SPLIT), guides.face.astype(inside.x.dtype))
        of_frame = np.arange(given.x.shape[1]) // (inside.grid[1] * inside.grid[2])
        run = self._facing if cache is None else partial(self._facing_cached, cache)
        seen = np.minimum(of_frame, frames - 1)
        return self.leave(inside, run(seen, given, inside.context, inside.positions))

    def _facing(
        self,
        frames: Int[np.ndarray, " tokens"],
        given: Guided,
        context: BlockContext,
        positions: Positions,
        behind: int = 0,
    ) -> Tokens:
        """Run the blocks from `behind` on, which is 0 or 1: the first attention is behind 1."""
        every, last = self.config.inject_face_latents_blocks, self.config.face_adapters - 1
        x, face = given

        def block(block: WanBlock, x: Tokens) -> Tokens:
            return block(x, *context, positions)

        def facing(adapter: FaceAttention, x: Tokens) -> Tokens:
            return split(x + adapter(x, face, frames), *SPLIT)

        def group(adapter: FaceAttention, x: Tokens, first: Array) -> Tokens:
            return scan(
                self.blocks, facing(adapter, x), block, between=(1, 1 + every), first=first
            )[0]

        if not behind:
            x, _ = scan(self.blocks, x, block, between=(0, 1))
        if last:
            firsts = every * jnp.arange(last + 1)
            x, _ = scan(self.face_adapters, x, group, firsts, between=(0, last))
        x, _ = scan(self.face_adapters, x, facing, between=(last, last + 1))
        if every > 1:
            x, _ = scan(self.blocks, x, block, between=(self.depth + 1 - every, self.depth))
        return x

    def _facing_cached(
        self,
        cache: CachedStep,
        frames: Int[np.ndarray, " tokens"],
        given: Guided,
        context: BlockContext,
        positions: Positions,
    ) -> Tokens:
        """Run a step that may leave most blocks out, and with them the face."""
        x, signal = self.signal(given.x, context, positions, cache.first)
        return cache.run(
            Entered(given._replace(x=x), x, signal),
            context,
            lambda given, context: self._facing(frames, given, context, positions, cache.first),
        )
