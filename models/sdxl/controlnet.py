"""ControlNet of SDXL: a copy of the UNet's down path that turns a control image into residuals.

Source: Zhang et al. 2023 (ControlNet), section 3.2, in the parametrisation of diffusers'
ControlNetModel; for unions, of ControlNetUnionModel.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from models.nn.attention.attention import default_attention
from models.nn.layers.conv_strips import join_strips, split_strips
from models.nn.layers.convolution import convolved
from models.nn.layers.parameterised import Conv, conv, embed, linear
from models.nn.layers.scanned import scan, stack
from models.parallel.trace_options import trace_options
from models.sdxl.blocks import BY_LAYOUT, Attentions, Vector, split_rows
from models.sdxl.config import UNetConfig
from models.sdxl.control_config import ControlNetConfig, UnionConfig
from models.sdxl.embeddings import Embedding, sinusoid
from models.sdxl.network import DownPath, Residuals, padded_conv
from models.text.clip import ClipConfig
from models.text.clip_encoder import ClipBlock

Hint = Float[Array, "batch _rows _columns first"]
"""Embedded control image, at the latents' size."""


class ControlNet(DownPath):
    """Network from latents, conditioning and a hint to residuals of the UNet's states."""

    def __init__(
        self,
        config: ControlNetConfig,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
        attention: Attentions = BY_LAYOUT,
    ) -> None:
        make: dict[str, Any] = {"rngs": rngs, "param_dtype": param_dtype}
        super().__init__(config.trunk, attention, **make)
        self.image_encoder = ControlImageEncoder(config, **make)
        self.kinds = None if config.union is None else ControlTypeEmbedding(config, **make)
        self.out = nnx.List(padded_conv(w, w, 1, **make) for w in state_widths(config.trunk))
        lowest = config.trunk.block_out_channels[-1]
        self.mid_out = padded_conv(lowest, lowest, 1, **make)

    def __call__(
        self,
        latents: Float[Array, "batch height width channels"],
        timestep: Float[Array, " batch"],
        prompt_embeds: Float[Array, "batch text_tokens text_features"],
        pooled_embeds: Float[Array, "batch pooled"] | None,
        time_ids: Float[Array, "batch numbers"] | None,
        hint: Hint,
        kinds: Int[Array, "batch controls"] | None = None,
    ) -> Residuals:
        """Return the residuals of the UNet's states, in the dtype of the weights.

        Args:
            hint: output of `hint`; for several controls of a union, their sum.
            kinds: control types of a union; values below 0 are empty slots.
        """
        dtype = self.conv_in.kernel.dtype
        time = self.condition(timestep, pooled_embeds, time_ids, None)
        x = split_rows(convolved(self.conv_in, latents.astype(dtype)))
        if self.kinds is not None:
            assert kinds is not None  # required for unions
            time = time + self.kinds.time(kinds)
        x, text = x + hint.astype(dtype), prompt_embeds.astype(dtype)
        with replace(trace_options(), strips=self._strips(*x.shape[:3])).active():
            states, middle = self.states(split_strips(x), time, text)
            added = [convolved(out, state) for out, state in zip(self.out, states, strict=True)]
            added.append(convolved(self.mid_out, middle))
            return tuple(split_rows(join_strips(residual)) for residual in added)

    def hint(
        self,
        image: Float[Array, "batch _height _width 3"],
        kind: Int[Array, " batch"] | None = None,
        scale: Float[Array, " batch"] | None = None,
    ) -> Hint:
        """Embed control images; the result is the same for all steps.

        Args:
            image: in [0, 1].
            kind, scale: control type and strength, for unions only. The scale is 1 for a single
                control, whose residuals are scaled instead.
        """
        hint = self.image_encoder(image)
        if self.kinds is None:
            return hint
        assert kind is not None and scale is not None  # required for unions
        return self.kinds.hint(hint, kind, scale)


class ControlImageEncoder(nnx.Module):
    """Convolutional encoder of a control image, down to the latents' size."""

    def __init__(self, config: ControlNetConfig, **make: Any) -> None:
        widths = config.conditioning_embedding_out_channels
        self.is_bgr = config.controlnet_conditioning_channel_order == "bgr"
        self.conv_in = padded_conv(config.conditioning_channels, widths[0], 3, **make)
        self.blocks = nnx.List(
            layer
            for before, after in itertools.pairwise(widths)
            for layer in (padded_conv(before, before, 3, **make), _halving(before, after, **make))
        )
        self.conv_out = padded_conv(widths[-1], config.trunk.block_out_channels[0], 3, **make)

    def __call__(self, image: Float[Array, "batch _height _width 3"]) -> Hint:
        """Embed a control image in [0, 1], in the dtype of the weights."""
        x = image.astype(self.conv_in.kernel.dtype)
        x = split_rows(x[..., ::-1] if self.is_bgr else x)
        for layer in (self.conv_in, *self.blocks):
            x = split_rows(jax.nn.silu(convolved(layer, x)))
        return split_rows(convolved(self.conv_out, x))


class ControlTypeEmbedding(nnx.Module):
    """Embedding of a union's control types, added to the time embedding and the hints.

    Source: diffusers' ControlNetUnionModel.
    """

    def __init__(self, config: ControlNetConfig, **make: Any) -> None:
        union, trunk = config.union, config.trunk
        assert union is not None and trunk.addition_time_embed_dim is not None  # set by the config
        width, self.count = union.num_trans_channel, union.num_control_type
        self.features = trunk.addition_time_embed_dim
        self.waves = trunk.flip_sin_to_cos, trunk.freq_shift
        self.table = embed(self.count, width, (None, None), **make)
        self.layers = stack(
            partial(ClipBlock, _tower(union), default_attention),
            union.num_trans_layer,
            rngs=make["rngs"],
            param_dtype=make["param_dtype"],
        )
        self.spread = linear(width, union.num_proj_channel, ("embed", None), **make)
        self.embedding = Embedding(self.features * self.count, trunk.time_features, **make)

    def time(self, kinds: Int[Array, "batch controls"]) -> Vector:
        """Embed each set of control types for the time embedding; values below 0 are ignored."""
        flip, shift = self.waves
        selected = jax.nn.one_hot(kinds, self.count, dtype=jnp.float32).max(axis=1).reshape(-1)
        waves = sinusoid(selected, self.features, flip_sin_to_cos=flip, freq_shift=shift)
        return self.embedding(waves.reshape(len(kinds), -1))

    def hint(self, hint: Hint, kind: Int[Array, " batch"], scale: Float[Array, " batch"]) -> Hint:
        """Add the embedding of the control type to a hint, and scale the hint.

        diffusers' attention swaps the batch and token axes, contrary to their names. It attends
        over the batch, whose entries are equal copies of one image. Hence latents and other control
        images do not contribute, and each token attends to itself only.
        """
        scale = scale.astype(hint.dtype)[:, None]
        means = scale * (hint.mean((1, 2)) + self.table.embedding[...][kind])
        tokens, _ = scan(self.layers, means[:, None], lambda layer, tokens: layer(tokens))
        return (hint + self.spread(tokens[:, 0])[:, None, None]) * scale[:, None, None]


def state_widths(trunk: UNetConfig) -> tuple[int, ...]:
    """Return the channels of each skip state, in order."""
    first, *_ = widths = trunk.block_out_channels
    counts = [level.residual_blocks + 1 for level in trunk.down_levels]
    widths_by_state = [
        width for width, count in zip(widths, counts, strict=True) for _ in range(count)
    ]
    return (first, *widths_by_state[:-1])  # the lowest level has no downsampled state


def _halving(in_width: int, width: int, **make: Any) -> Conv:
    return conv(in_width, width, (3, 3), strides=2, padding=((1, 1), (1, 1)), **make)


def _tower(union: UnionConfig) -> ClipConfig:
    """Return the config of the CLIP block that computes a union's attention."""
    width = union.num_trans_channel
    return ClipConfig(
        hidden_size=width,
        intermediate_size=4 * width,
        num_attention_heads=union.num_trans_head,
        num_hidden_layers=union.num_trans_layer,
    )
