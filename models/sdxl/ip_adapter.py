"""IP-Adapter network: image tokens, and their keys and values for each UNet layer.

Keys and values depend only on the image, so they are computed once per request. The UNet attends to
them in addition to the text and needs no extra parameters.

Source: Ye et al. 2023 (IP-Adapter), section 3.2; h94/IP-Adapter for the names in files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from models.nn.attention.attention import attention
from models.nn.layers.activations import erf_gelu
from models.nn.layers.parameterised import Axes, Linear, linear
from models.nn.layers.scanned import each, scan, stack
from models.sdxl.config import Level, UNetConfig

HEAD_FEATURES = 64
"""Head width of the resampler, at any model width. Source: diffusers' loaders/unet.py."""
NORM_EPSILON = 1e-5

Tokens = Float[Array, "batch tokens text_features"]


class ImageKeys(NamedTuple):
    """Keys and values of an image prompt for the layers of one transformer.

    Leaves have the shape [..., layers, tokens, width]; in the UNet [layers, batch, tokens, width].
    """

    keys: Float[Array, ...]
    values: Float[Array, ...]
    """Values, already multiplied by the prompt's scale."""


class ImageLevels(NamedTuple):
    """Keys and values by UNet block, with one entry per transformer."""

    down: tuple[tuple[Any, ...], ...]
    mid: tuple[tuple[Any, ...], ...]
    up: tuple[tuple[Any, ...], ...]


NO_IMAGES = ImageLevels((), (), ())


@dataclass(frozen=True)
class ResamplerConfig:
    """Sizes of the resampler, which extracts tokens from all image patches."""

    width: int
    heads: int
    depth: int
    inner_width: int


@dataclass(frozen=True)
class IpAdapterConfig:
    """Sizes of an IP-Adapter, inferred from its arrays."""

    image_features: int
    """Width of the image encoder's output."""
    tokens: int
    """Number of tokens per image prompt."""
    resampler: ResamplerConfig | None
    """Resampler of the patches; None for a linear projection of the class token."""


class ImageProjection(nnx.Module):
    """Linear projection of an image embedding to tokens."""

    def __init__(self, config: IpAdapterConfig, text_features: int, **make: Any) -> None:
        self.tokens = config.tokens
        self.proj = linear(
            config.image_features, config.tokens * text_features, (None, "embed"), **make
        )
        self.norm = _norm(text_features, **make)

    def __call__(self, embeds: Float[Array, "batch image_features"]) -> Tokens:
        """Project each image embedding to tokens."""
        tokens: Tokens = self.norm(self.proj(embeds).reshape(len(embeds), self.tokens, -1))
        return tokens


class ResamplerLayer(nnx.Module):
    """Attention of the latents to image and latents, then feed-forward."""

    def __init__(self, config: ResamplerConfig, **make: Any) -> None:
        width, inner = config.width, config.heads * HEAD_FEATURES

        def dense(features: int, out: int, axes: Axes) -> Linear:
            return linear(features, out, axes, use_bias=False, **make)

        self.norm_image, self.norm_latents, self.norm = (_norm(width, **make) for _ in range(3))
        self.q = dense(width, inner, ("embed", "heads"))
        self.k = dense(width, inner, ("embed", "heads"))
        self.v = dense(width, inner, ("embed", "heads"))
        self.out = dense(inner, width, ("heads", "embed"))
        self.up = dense(width, config.inner_width, ("embed", "mlp"))
        self.down = dense(config.inner_width, width, ("mlp", "embed"))

    def __call__(
        self,
        latents: Float[Array, "batch latents width"],
        image: Float[Array, "batch patches width"],
    ) -> Float[Array, "batch latents width"]:
        """Update the latent queries by attention to the image."""
        normed = self.norm_latents(latents)
        context = jnp.concatenate([self.norm_image(image), normed], axis=1)
        q, k, v = (
            layer(x).reshape(*x.shape[:2], -1, HEAD_FEATURES)
            for layer, x in ((self.q, normed), (self.k, context), (self.v, context))
        )
        latents = latents + self.out(attention(q, k, v).reshape(*latents.shape[:2], -1))
        return latents + self.down(erf_gelu(self.up(self.norm(latents))))


class Resampler(nnx.Module):
    """Perceiver resampler: patch features to tokens, one per latent.

    Source: Alayrac et al. 2022 (Flamingo), section 3.1.1.
    """

    def __init__(
        self, config: IpAdapterConfig, sizes: ResamplerConfig, text_features: int, **make: Any
    ) -> None:
        latents = jnp.zeros((1, config.tokens, sizes.width), make["param_dtype"])
        self.latents = nnx.Param(latents, axes=(None, None, "embed"))
        self.proj_in = linear(config.image_features, sizes.width, (None, "embed"), **make)
        self.layers = stack(partial(ResamplerLayer, sizes), sizes.depth, **make)
        self.proj_out = linear(sizes.width, text_features, ("embed", None), **make)
        self.norm_out = _norm(text_features, **make)

    def __call__(self, states: Float[Array, "batch patches image_features"]) -> Tokens:
        """Resample each image's patches to its tokens."""
        image = self.proj_in(states)
        latents = jnp.broadcast_to(self.latents[...], (len(image), *self.latents.shape[1:]))
        latents, _ = scan(self.layers, latents, lambda layer, x: layer(x, image))
        tokens: Tokens = self.norm_out(self.proj_out(latents))
        return tokens


class KeysAndValues(nnx.Module):
    """Key and value projections of image tokens for one UNet layer."""

    def __init__(self, text_features: int, width: int, **make: Any) -> None:
        self.k = linear(text_features, width, ("embed", "heads"), use_bias=False, **make)
        self.v = linear(text_features, width, ("embed", "heads"), use_bias=False, **make)

    def __call__(self, tokens: Tokens) -> ImageKeys:
        """Project image tokens to keys and values."""
        return ImageKeys(self.k(tokens), self.v(tokens))


class IpAdapter(nnx.Module):
    """IP-Adapter: image encoder output to keys and values for every UNet layer."""

    def __init__(
        self,
        config: IpAdapterConfig,
        unet: UNetConfig,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
    ) -> None:
        make: dict[str, Any] = {"rngs": rngs, "param_dtype": param_dtype}
        text = unet.projected_text_features
        self.config = config
        self.unet = unet
        self.projection = (
            ImageProjection(config, text, **make)
            if config.resampler is None
            else Resampler(config, config.resampler, text, **make)
        )
        self.layers = nnx.List(
            stack(partial(KeysAndValues, text, width), depth, **make)
            for width, depth in transformers_of(unet)
        )

    def __call__(
        self, images: Float[Array, "prompts images ..."], scales: Float[Array, " images"]
    ) -> ImageLevels:
        """Return keys and values of all images together, [prompts, layers, tokens, width].

        Args:
            images: image encoder output of each image, per prompt.
            scales: strength of each image.
        """
        prompts, count = images.shape[:2]
        tokens = self.projection(images.reshape(prompts * count, *images.shape[2:]))
        tokens = tokens.reshape(prompts, -1, tokens.shape[-1])
        strength = jnp.repeat(scales, self.config.tokens)[:, None].astype(tokens.dtype)
        outputs = iter(
            [_scaled(each(layers, lambda layer: layer(tokens)), strength) for layers in self.layers]
        )
        # order of the file's numbering: down, up, mid
        down, up, mid = (
            tuple(
                tuple(next(outputs) if depth else () for depth in level.depths or ())
                for level in levels
            )
            for levels in _levels(self.unet)
        )
        return ImageLevels(down, mid, up)


def transformers_of(unet: UNetConfig) -> Iterator[tuple[int, int]]:
    """Yield width and depth of each nonempty transformer, in the order of adapter files.

    Source: diffusers' UNet2DConditionModel.attn_processors: down, up, then mid.
    """
    for levels in _levels(unet):
        for level in levels:
            width = level.heads * (level.channels // level.heads)
            yield from ((width, depth) for depth in level.depths or () if depth)


def _levels(unet: UNetConfig) -> tuple[tuple[Level, ...], ...]:
    """Return the levels of the UNet's down path, up path and middle."""
    return unet.down_levels, unet.up_levels, (unet.mid_level,) if unet.mid_block_type else ()


def _scaled(leaves: ImageKeys, strength: Float[Array, "tokens 1"]) -> ImageKeys:
    """Move the prompt axis of keys and values before the layer axis, and scale the values."""
    keys, values = (jax.numpy.moveaxis(leaf, 1, 0) for leaf in leaves)
    return ImageKeys(keys, values * strength)


def _norm(width: int, *, rngs: nnx.Rngs, param_dtype: DTypeLike) -> nnx.LayerNorm:
    return nnx.LayerNorm(
        width,
        epsilon=NORM_EPSILON,
        use_fast_variance=False,
        scale_metadata={"axes": ("embed",)},
        bias_metadata={"axes": ("embed",)},
        param_dtype=param_dtype,
        rngs=rngs,
    )
