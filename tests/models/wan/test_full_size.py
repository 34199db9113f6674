"""Wan at full size with abstract shapes: every size is traced and nothing is allocated.

The counts are compared with diffusers' and transformers' networks of the same configs on torch's
meta device.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import pytest
import torch
from diffusers import (
    WanAnimateTransformer3DModel,
    WanTransformer3DModel,
    WanVACETransformer3DModel,
)
from flax import nnx
from transformers import UMT5Config as TheirUMT5Config
from transformers import UMT5EncoderModel

from models.loading.abstract import abstract_module
from models.text.umt5 import UMT5Config, UMT5Encoder
from models.wan import published
from models.wan.animate import AnimateTransformer, Guides
from models.wan.animate_config import AnimateConfig
from models.wan.config import WanConfig
from models.wan.face_encoder import FaceEncoder
from models.wan.network import WanTransformer
from models.wan.prompts import prompt_embeds
from models.wan.vace import Control, VaceTransformer
from models.wan.vace_config import VaceConfig
from models.weights.loader import flat_parameters
from tests.models.wan.counts import parameters

HD_81_FRAMES, HD_121_FRAMES = (21, 90, 160), (31, 44, 80)
"""Latents of 1280 x 720 at 81 frames (2.1's VAE) and of 1280 x 704 at 121 (2.2's)."""


@pytest.mark.parametrize(
    ("name", "grid", "image_tokens"),
    [
        ("T2V_1_3B", HD_81_FRAMES, 0),
        ("T2V_14B", HD_81_FRAMES, 0),
        ("I2V_14B", HD_81_FRAMES, 257),
        ("FLF2V_14B", HD_81_FRAMES, 514),
        ("I2V_A14B", HD_81_FRAMES, 0),
        ("TI2V_5B", HD_121_FRAMES, 0),
    ],
)
def test_transformer(name: str, grid: tuple[int, int, int], image_tokens: int) -> None:
    """Compare the parameter count with diffusers, and trace a step of a long video in bfloat16."""
    published_config = getattr(published, name)
    config = WanConfig.from_dict(published_config)
    network = abstract_module(WanTransformer, config, param_dtype=jnp.bfloat16)
    with torch.device("meta"):
        reference = WanTransformer3DModel.from_config(dict(published_config))
    assert parameters(network) == sum(parameter.numel() for parameter in reference.parameters())
    in_float32 = sum(
        leaf.size for leaf in flat_parameters(network).values() if leaf.dtype == jnp.float32
    )
    assert 0 < in_float32 < 0.01 * parameters(network)

    def shape(*sizes: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((2, *sizes), jnp.float32)

    velocity = nnx.eval_shape(
        lambda network, *inputs: network(*inputs),
        network,
        shape(*grid, config.in_channels),
        shape(math.prod(grid) // 4) if name == "TI2V_5B" else shape(),
        shape(512, config.text_dim),
        shape(image_tokens, config.image_dim) if config.image_dim else None,
    )
    assert velocity.shape == (2, *grid, config.velocity_channels)
    assert velocity.dtype == jnp.bfloat16


@pytest.mark.parametrize(("name", "hints"), [("VACE_1_3B", 15), ("VACE_14B", 8)])
def test_vace_transformer(name: str, hints: int) -> None:
    """Compare the parameter count with diffusers, and trace a video with two references."""
    published_config = getattr(published, name)
    config = VaceConfig.from_dict(published_config)
    assert isinstance(config, VaceConfig)
    network = abstract_module(VaceTransformer, config, param_dtype=jnp.bfloat16)
    with torch.device("meta"):
        reference = WanVACETransformer3DModel.from_config(dict(published_config))
    assert parameters(network) == sum(parameter.numel() for parameter in reference.parameters())

    def shape(*sizes: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((2, *sizes), jnp.float32)

    velocity = nnx.eval_shape(
        lambda network, *inputs, control: network(*inputs, control=control),
        network,
        shape(23, 60, 104, config.in_channels),
        shape(),
        shape(512, config.text_dim),
        control=Control(shape(23, 60, 104, config.vace_in_channels), shape(hints)),
    )
    assert velocity.shape == (2, 23, 60, 104, 16)
    assert velocity.dtype == jnp.bfloat16


def test_animate_transformer() -> None:
    """Compare the parameter count with diffusers, and trace a segment of 77 frames with its
    face.
    """
    config = AnimateConfig.from_dict(published.ANIMATE_14B)
    network = abstract_module(AnimateTransformer, config, param_dtype=jnp.bfloat16)
    encoder = abstract_module(FaceEncoder, config)
    with torch.device("meta"):
        reference = WanAnimateTransformer3DModel.from_config(dict(published.ANIMATE_14B))
    count = sum(parameter.numel() for parameter in reference.parameters())
    assert parameters(network) + parameters(encoder) == count
    faces = jax.ShapeDtypeStruct((77, 512, 512, 3), jnp.uint8)
    face = nnx.eval_shape(lambda encoder, faces: encoder(faces, 2), encoder, faces)
    assert face.shape == (2, 21, 5, 5120)

    def shape(*sizes: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((2, *sizes), jnp.float32)

    velocity = nnx.eval_shape(
        lambda network, *inputs, guides: network(*inputs, guides=guides),
        network,
        shape(21, 90, 160, config.in_channels),
        shape(),
        shape(512, config.text_dim),
        shape(257, config.image_dim),
        guides=Guides(shape(20, 90, 160, 16), face),
    )
    assert velocity.shape == (2, 21, 90, 160, 16)
    assert velocity.dtype == jnp.bfloat16


@pytest.mark.parametrize(
    ("name", "billions"),
    [("T2V_1_3B", 1.4), ("T2V_14B", 14.3), ("I2V_14B", 16.4), ("TI2V_5B", 5.0)],
)
def test_parameter_counts_match_the_hub(name: str, billions: float) -> None:
    """Sizes that the hub displays, to detect a wrong config."""
    config = WanConfig.from_dict(getattr(published, name))
    network = abstract_module(WanTransformer, config)
    assert parameters(network) / 1e9 == pytest.approx(billions, abs=0.05)


def test_text_encoder() -> None:
    config = UMT5Config.from_dict(published.UMT5_XXL)
    encoder = abstract_module(UMT5Encoder, config, param_dtype=jnp.bfloat16)
    with torch.device("meta"):
        reference = UMT5EncoderModel(TheirUMT5Config(**published.UMT5_XXL))
    assert parameters(encoder) == sum(parameter.numel() for parameter in reference.parameters())
    ids = jax.ShapeDtypeStruct((1, 512), jnp.int32)
    mask = jax.ShapeDtypeStruct((1, 512), jnp.bool_)
    features = nnx.eval_shape(prompt_embeds, encoder, ids, mask)
    assert (features.shape, features.dtype) == ((1, 512, 4096), jnp.bfloat16)
