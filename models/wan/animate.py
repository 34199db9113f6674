"""Animate transformer: Wan with pose latents added to its tokens and attention to a face.

The first latent frame is the character's image. Poses are added to the tokens of all other frames.
After every few blocks, each frame's tokens attend to the face tokens of that frame.

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
from models.nn.layers.parameterised import Kinds, conv, from_heads, linear, to_heads
from models.nn.layers.scanned import scan, stack
from models.nn.layers.step_cache import BlockInputs, CachedStep
from models.parallel.placement import split
from models.wan.animate_config import AnimateConfig
from models.wan.network import SPLIT, BlockContext, Tokens, Video, WanBlock, WanTransformer

Face = Float[Array, "batch frames face_tokens width"]
HEADS = ("batch", "tokens", "heads", None)


class Guides(NamedTuple):
    """Inputs of pose and face that drive the character of Wan Animate."""

    pose: Video
    """Latents of the poses; one frame fewer than the noisy latents."""
    face: Face
    """Face tokens of each latent frame."""


class GuidedTokens(NamedTuple):
    """Video tokens between blocks, and the face tokens that they attend to."""

    x: Tokens
    face: Face


class FaceAttention(nnx.Module):
    """Attention of each video token to the few face tokens of its frame.

    Keys and values are gathered for each video token, one face token at a time, so that any split
    of the tokens works.
    """

    def __init__(
        self, config: AnimateConfig, *, rngs: nnx.Rngs, param_dtype: DTypeLike = jnp.float32
    ) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        make = partial(linear, **kinds)
        width, dim = config.width, config.attention_head_dim
        self.q = make(width, width, ("embed", "heads"))
        self.k = make(width, width, ("embed", "heads"))
        self.v = make(width, width, ("embed", "heads"))
        self.out = make(width, width, ("heads", "embed"))
        self.q_norm = RMSNorm(dim, config.eps, **kinds)
        self.k_norm = RMSNorm(dim, config.eps, **kinds)
        self.heads, self.epsilon = config.num_attention_heads, config.eps

    def __call__(self, x: Tokens, face: Face, frames: Int[np.ndarray, " tokens"]) -> Tokens:
        """Attend from each video token to the face tokens of its frame.

        Args:
            frames: frame index of each token.
        """
        context = layer_norm(face, self.epsilon).reshape(len(face), -1, face.shape[-1])
        queries = to_heads(self.q, layer_norm(x, self.epsilon), self.heads)
        keys, values = (to_heads(layer, context, self.heads) for layer in (self.k, self.v))
        queries, keys = self.q_norm(queries), self.k_norm(keys)
        keys, values = (
            values_or_keys.reshape(*face.shape[:3], self.heads, -1)
            for values_or_keys in (keys, values)
        )

        def of_tokens(values_or_keys: Array, number: int) -> Array:
            return split(values_or_keys[:, frames, number], *HEADS)

        count, scale = face.shape[2], queries.shape[-1] ** -0.5
        product = partial(jnp.einsum, "bthd,bthd->bth", preferred_element_type=jnp.float32)
        logits = [product(queries, of_tokens(keys, number)) * scale for number in range(count)]
        weights = jax.nn.softmax(jnp.stack(logits), axis=0).astype(values.dtype)
        terms = [weights[number, ..., None] * of_tokens(values, number) for number in range(count)]
        return from_heads(self.out, sum(terms[1:], terms[0]))


class AnimateTransformer(WanTransformer):
    """Denoising transformer of Wan Animate: latents, conditioning, poses and a face to velocity."""

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
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        super().__init__(config, attention, cross_attention, **kinds)
        width, patch = config.width, config.patch_size
        self.pose_patches_in = conv(config.latent_channels, width, patch, strides=patch, **kinds)
        self.face_adapters = stack(partial(FaceAttention, config), config.face_adapters, **kinds)

    def __call__(
        self,
        latents: Video,
        timestep: Float[Array, " batch *tokens"],
        prompt_embeds: Float[Array, "batch text_tokens text_dim"],
        image_embeds: Float[Array, "batch image_tokens image_dim"] | None = None,
        cache: CachedStep | None = None,
        guides: Guides | None = None,
    ) -> Float[Array, "batch frames rows columns out_channels"]:
        """Return the velocity of the latents, as `WanTransformer` does.

        Raises:
            ValueError: poses and face are missing, or their frames do not match the latents; and as
                `WanTransformer` does.
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
        step = self.embed_inputs(latents, timestep, prompt_embeds, image_embeds)
        pose = convolved(self.pose_patches_in, guides.pose.astype(step.x.dtype))
        pose = self.padded(jnp.pad(pose, ((0, 0), (1, 0), *[(0, 0)] * 3)))
        guided = GuidedTokens(split(step.x + pose, *SPLIT), guides.face.astype(step.x.dtype))
        of_frame = np.arange(guided.x.shape[1]) // (step.grid[1] * step.grid[2])
        run = self._run_with_face if cache is None else partial(self._run_with_face_cached, cache)
        frame_of_token = np.minimum(of_frame, frames - 1)
        return self.project_output(step, run(frame_of_token, guided, step.context, step.positions))

    def _run_with_face(
        self,
        frames: Int[np.ndarray, " tokens"],
        guided: GuidedTokens,
        context: BlockContext,
        positions: Positions,
        first_block: int = 0,
    ) -> Tokens:
        """Run the blocks from `first_block`, 0 or 1, on; face attention starts after block 0."""
        every, last = self.config.inject_face_latents_blocks, self.config.face_adapters - 1
        x, face = guided

        def block(block: WanBlock, x: Tokens) -> Tokens:
            return block(x, *context, positions)

        def facing(adapter: FaceAttention, x: Tokens) -> Tokens:
            return split(x + adapter(x, face, frames), *SPLIT)

        def group(adapter: FaceAttention, x: Tokens, first: Array) -> Tokens:
            return scan(
                self.blocks, facing(adapter, x), block, between=(1, 1 + every), first=first
            )[0]

        if not first_block:
            x, _ = scan(self.blocks, x, block, between=(0, 1))
        if last:
            firsts = every * jnp.arange(last + 1)
            x, _ = scan(self.face_adapters, x, group, firsts, between=(0, last))
        x, _ = scan(self.face_adapters, x, facing, between=(last, last + 1))
        if every > 1:
            x, _ = scan(self.blocks, x, block, between=(self.depth + 1 - every, self.depth))
        return x

    def _run_with_face_cached(
        self,
        cache: CachedStep,
        frames: Int[np.ndarray, " tokens"],
        guided: GuidedTokens,
        context: BlockContext,
        positions: Positions,
    ) -> Tokens:
        """Run a step whose cache may skip most blocks, face attention included."""
        x, signal = self.signal(guided.x, context, positions, cache.first)
        return cache.run(
            BlockInputs(guided._replace(x=x), x, signal),
            context,
            lambda guided, context: self._run_with_face(
                frames, guided, context, positions, cache.first
            ),
        )
