"""UNet of SDXL: predicts the noise of latents from time, text and image sizes.

Source: Podell et al. 2023 (SDXL), section 2, in the parametrisation of diffusers'
UNet2DConditionModel. Equal transformer layers are stacked and scanned
(models/nn/layers/scanned.py).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from models.nn.layers.conv_strips import for_batch, join_strips, split_strips
from models.nn.layers.convolution import convolved
from models.nn.layers.norms import GroupNorm
from models.nn.layers.parameterised import Conv, conv, linear
from models.nn.layers.step_cache import AXES as TOKEN_AXES
from models.nn.layers.step_cache import BlockInputs, CachedStep, Tokens
from models.parallel.placement import split
from models.parallel.trace_options import trace_options
from models.sdxl.blocks import (
    BY_LAYOUT,
    Attentions,
    Features,
    Text,
    UNetDownBlock,
    UNetMidBlock,
    UNetUpBlock,
    Vector,
    part_of,
    split_rows,
)
from models.sdxl.config import ACTIVATIONS, UNetConfig
from models.sdxl.embeddings import Embedding, sinusoid
from models.sdxl.ip_adapter import NO_IMAGES, ImageLevels

Residuals = tuple[Features, ...]
"""Residuals that ControlNets add to each state of the down path, in order, and to the middle's."""


class Conditioning(NamedTuple):
    """Conditioning shared by all levels of the UNet."""

    time: Vector
    text: Text
    images: ImageLevels = NO_IMAGES
    control: Residuals | None = None

    def by_image(self) -> Conditioning:
        """Return the conditioning with strips joined and the batch axis first."""
        images = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), self.images)
        control = None if self.control is None else tuple(map(join_strips, self.control))
        return self._replace(images=images, control=control)

    def in_strips(self) -> Conditioning:
        """Split the conditioning into strips, with the layer axis first: undoes `by_image`."""
        images = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), self.images)
        control = None if self.control is None else tuple(map(split_strips, self.control))
        return self._replace(images=images, control=control)


class DownPath(nnx.Module):
    """First convolution, time embedding, down path and middle block of a UNet or a ControlNet."""

    def __init__(self, config: UNetConfig, attention: Attentions, **make: Any) -> None:
        self.config = config
        first = config.block_out_channels[0]
        self.conv_in = padded_conv(config.in_channels, first, config.conv_in_kernel, **make)
        self.time_embedding = Embedding(
            first,
            config.time_features,
            activation=config.act_fn,
            extra_features=config.time_cond_proj_dim,
            **make,
        )
        self.add_embedding = _add_embedding(config, **make)
        self.down_blocks = _down_blocks(config, attention, **make)
        self.mid_block = UNetMidBlock(config, attention, **make) if config.mid_block_type else None

    def _strips(self, batch: int, height: int, width: int) -> int:
        """Return the number of strips per image; 1 if the width does not halve evenly."""
        halved = 2 ** (len(self.down_blocks) - 1)
        if width % halved:
            return 1
        return for_batch(trace_options().layout, batch, width // halved)

    def states(
        self, x: Features, time: Vector, text: Text, images: ImageLevels = NO_IMAGES
    ) -> tuple[list[Features], Features]:
        """Return the skip states of the down path, and the output of the middle block.

        Args:
            x: output of the first convolution.
        """
        outer = self.outer_states(x, time, text, images)
        inner, middle = self.inner_states(outer[-1], time, text, images)
        return outer + inner, middle

    def outer_states(
        self, x: Features, time: Vector, text: Text, images: ImageLevels = NO_IMAGES
    ) -> list[Features]:
        """Return the UNet's skip states at full resolution."""
        first = self.down_blocks[0].at_its_size(x, time, text, part_of(images.down, 0))
        return [x, *first]

    def inner_states(
        self, x: Features, time: Vector, text: Text, images: ImageLevels = NO_IMAGES
    ) -> tuple[list[Features], Features]:
        """Return the skip states at lower resolutions, and the output of the middle block."""
        states = [x, *self.down_blocks[0].halved(x)]
        for index, block in enumerate(self.down_blocks):
            if index:
                states += block(states[-1], time, text, part_of(images.down, index))
        last = states[-1]
        if self.mid_block is not None:
            last = self.mid_block(last, time, text, part_of(images.mid, 0))
        return states[1:], last

    def condition(
        self,
        timestep: Float[Array, " batch"],
        pooled_embeds: Float[Array, "batch pooled"] | None,
        time_ids: Float[Array, "batch numbers"] | None,
        timestep_cond: Float[Array, "batch guidance_features"] | None,
    ) -> Float[Array, "batch time_features"]:
        """Embed time, guidance, sizes and pooled text into the vector for all residual blocks."""
        config = self.config
        first = self._embed_numbers(timestep, config.block_out_channels[0])
        vector = self.time_embedding(first, timestep_cond)
        if config.timestep_post_act is not None:
            vector = ACTIVATIONS[config.timestep_post_act](vector)
        if self.add_embedding is not None:
            if pooled_embeds is None or time_ids is None:
                raise ValueError("this UNet has a text-time embedding: give it both its inputs")
            vector = vector + self.add_embedding(self._text_time(pooled_embeds, time_ids))
        if config.time_embedding_act_fn is not None:
            vector = ACTIVATIONS[config.time_embedding_act_fn](vector)
        return vector

    def _text_time(
        self, pooled_embeds: Float[Array, "batch pooled"], time_ids: Float[Array, "batch numbers"]
    ) -> Float[Array, "batch features"]:
        features = self.config.addition_time_embed_dim
        assert features is not None  # validated by the config
        sizes = self._embed_numbers(time_ids.reshape(-1), features)
        sizes = sizes.reshape(len(pooled_embeds), -1)
        return jnp.concatenate([pooled_embeds.astype(sizes.dtype), sizes], axis=-1)

    def _embed_numbers(
        self, values: Float[Array, " count"], features: int
    ) -> Float[Array, "count features"]:
        flip, shift = self.config.flip_sin_to_cos, self.config.freq_shift
        return sinusoid(values, features, flip_sin_to_cos=flip, freq_shift=shift)


class UNet(DownPath):
    """Denoising network: latents and conditioning to the prediction that the scheduler expects."""

    def __init__(
        self,
        config: UNetConfig,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
        attention: Attentions = BY_LAYOUT,
    ) -> None:
        make: dict[str, Any] = {"rngs": rngs, "param_dtype": param_dtype}
        super().__init__(config, attention, **make)
        first = config.block_out_channels[0]
        self.encoder_hid_proj = _encoder_hid_proj(config, **make)
        self.up_blocks = _up_blocks(config, attention, **make)
        self.conv_norm_out = GroupNorm(first, config.norm_num_groups, config.norm_eps, **make)
        self.conv_out = padded_conv(first, config.out_channels, config.conv_out_kernel, **make)

    def __call__(
        self,
        latents: Float[Array, "batch height width channels"],
        timestep: Float[Array, " batch"],
        prompt_embeds: Float[Array, "batch text_tokens text_features"],
        pooled_embeds: Float[Array, "batch pooled"] | None = None,
        time_ids: Float[Array, "batch numbers"] | None = None,
        timestep_cond: Float[Array, "batch guidance_features"] | None = None,
        images: ImageLevels = NO_IMAGES,
        control: Residuals | None = None,
        cache: CachedStep | None = None,
    ) -> Float[Array, "batch height width out"]:
        """Predict, in the dtype of the weights.

        Args:
            timestep: 0 to 1000, float32.
            pooled_embeds, time_ids: pooled text; original size, crop and target size (px), as
                float32. Both are required by networks with a text-time embedding.
            timestep_cond: guidance-scale embedding, for networks with `time_cond_proj_dim`.
            images: image prompts of each transformer in each block, [layers, batch, tokens, width],
                one per adapter.
            control: ControlNet residuals of the down path's states and the middle's.
            cache: state of earlier steps; may replace all but the outermost level.
        """
        dtype = self.conv_in.kernel.dtype
        time = self.condition(timestep, pooled_embeds, time_ids, timestep_cond)
        text = prompt_embeds.astype(dtype)
        if self.encoder_hid_proj is not None:
            text = self.encoder_hid_proj(text)
        x = latents.astype(dtype)
        with replace(trace_options(), strips=self._strips(*x.shape[:3])).active():
            parts = None if control is None else tuple(map(split_strips, control))
            cond = Conditioning(time, text, images, parts)
            return join_strips(self.through_levels(split_strips(x), cond, cache))

    def through_levels(
        self, x: Features, cond: Conditioning, cache: CachedStep | None = None
    ) -> Features:
        """Run the UNet's levels on latents, optionally in strips and with a step cache.

        Source of the caching: Ma et al. 2023 (DeepCache), section 3.2.
        """
        x = split_rows(convolved(self.conv_in, 2 * x - 1 if self.config.center_input_sample else x))
        states = self.outer_states(x, cond.time, cond.text, cond.images)
        if cache is None:
            x = self.inner(states[-1], cond)
        else:
            x = split_strips(self._cached_inner(cache, join_strips(states[-1]), cond))
        if cond.control is not None:
            outer = cond.control[: len(states)]
            states = [state + residual for state, residual in zip(states, outer, strict=True)]
        last = len(self.up_blocks) - 1
        images = part_of(cond.images.up, last)
        x = self.up_blocks[last](x, states[::-1], cond.time, cond.text, x.shape[1:3], images)
        x = ACTIVATIONS[self.config.act_fn](self.conv_norm_out(x))
        return convolved(self.conv_out, x)

    def inner(self, x: Features, cond: Conditioning) -> Features:
        """Return the input of the outermost up block, computed by all levels below.

        Args:
            x: last state of the outermost level.
        """
        states, middle = self.inner_states(x, cond.time, cond.text, cond.images)
        if cond.control is not None:
            *added, middle_residual = cond.control[-len(states) - 1 :]
            states = [state + residual for state, residual in zip(states, added, strict=True)]
            middle = middle + middle_residual
        size, x = x.shape[1:3], middle
        for index, block in enumerate(self.up_blocks):
            if index < len(self.up_blocks) - 1:
                skips = [states.pop() for _ in block.resnets]
                target_size = states[-1].shape[1:3] if states else size
                images = part_of(cond.images.up, index)
                x = block(x, skips, cond.time, cond.text, target_size, images)
        return x

    def _cached_inner(
        self, cache: CachedStep, x: Float[Array, "batch height width _channels"], cond: Conditioning
    ) -> Float[Array, "batch height width inner"]:
        """Return the output of `inner`, computed or from the step cache, as whole images."""
        batch, height, width, _ = x.shape
        features = self.config.inner_features
        empty = jnp.zeros((batch, height * width, features), x.dtype)

        def run(x: Array, by_image: Conditioning) -> Tokens:
            with replace(trace_options(), strips=self._strips(*x.shape[:3])).active():
                output = join_strips(self.inner(split_strips(x), by_image.in_strips()))
            return split(output.reshape(len(x), -1, features), *TOKEN_AXES)

        entered = BlockInputs(x, empty, empty)
        output = cache.run(entered, cond.by_image(), run)
        return split_rows(output.reshape(batch, height, width, features))


def padded_conv(in_width: int, width: int, kernel: int, **make: Any) -> Conv:
    """Build a convolution with an odd kernel that preserves the image's size."""
    padding = ((kernel // 2, kernel // 2),) * 2
    return conv(in_width, width, (kernel, kernel), padding=padding, **make)


def _add_embedding(config: UNetConfig, **make: Any) -> Embedding | None:
    if config.addition_embed_type is None:
        return None
    assert config.projection_class_embeddings_input_dim is not None  # validated by the config
    return Embedding(config.projection_class_embeddings_input_dim, config.time_features, **make)


def _encoder_hid_proj(config: UNetConfig, **make: Any) -> nnx.Linear | None:
    if config.encoder_hid_dim is None:
        return None
    return linear(config.encoder_hid_dim, config.projected_text_features, (None, "embed"), **make)


def _down_blocks(config: UNetConfig, attention: Attentions, **make: Any) -> nnx.List[UNetDownBlock]:
    levels = config.down_levels
    widths = (levels[0].channels, *(level.channels for level in levels))
    return nnx.List(
        UNetDownBlock(
            widths[index],
            level,
            config,
            attention,
            downsample=index < len(levels) - 1,
            **make,
        )
        for index, level in enumerate(levels)
    )


def _up_blocks(config: UNetConfig, attention: Attentions, **make: Any) -> nnx.List[UNetUpBlock]:
    levels = config.up_levels
    widths = (levels[0].channels, *(level.channels for level in levels), levels[-1].channels)
    return nnx.List(
        UNetUpBlock(
            widths[index],
            [*(level.channels,) * (level.residual_blocks - 1), widths[index + 2]],
            level,
            config,
            attention,
            upsample=index < len(levels) - 1,
            **make,
        )
        for index, level in enumerate(levels)
    )
