"""Wan transformer: unsupported configs and inputs are refused by name."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jaxtyping import config as type_checks

from models.wan.config import WanConfig
from models.wan.network import WanTransformer
from models.wan.published import T2V_1_3B

SMALL = {
    "num_attention_heads": 2,
    "attention_head_dim": 10,
    "in_channels": 3,
    "text_dim": 4,
    "freq_dim": 6,
    "ffn_dim": 8,
    "num_layers": 2,
    "rope_max_seq_len": 5,
}


@pytest.fixture(autouse=True)
def as_in_production(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable jaxtyping, so only Atelier's own checks can detect a wrong type."""
    monkeypatch.setattr(type_checks, "jaxtyping_disable", True)


def test_defaults_are_those_of_the_large_one() -> None:
    config = WanConfig.from_dict({"_class_name": "WanTransformer3DModel"})
    assert (config.width, config.velocity_channels) == (5120, 16)
    assert config.axes_dims_rope == (44, 42, 42)


def test_output_channels_default_to_input_channels() -> None:
    assert WanConfig(in_channels=7, out_channels=None).velocity_channels == 7


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"patch_size": [2, 2]}, "patch_size must be three sizes, not (2, 2)"),
        ({"patch_size": [1, 2, 0]}, "patch_size must be a positive integer, not 0"),
        ({"num_layers": 0}, "num_layers must be a positive integer, not 0"),
        ({"num_layers": True}, "num_layers must be a positive integer, not True"),
        ({"ffn_dim": 8960.0}, "ffn_dim must be a positive integer"),
        ({"image_dim": 0}, "image_dim must be a positive integer"),
        ({"out_channels": -16}, "out_channels must be a positive integer, not -16"),
        ({"eps": 0}, "eps must be a positive number, not 0"),
        ({"cross_attn_norm": None}, "cross_attn_norm must be true or false"),
        ({"qk_norm": "layer_norm"}, "qk_norm 'layer_norm': only rms_norm_across_heads"),
        ({"attention_head_dim": 127}, "attention_head_dim 127 must be even"),
        ({"added_kv_proj_dim": 1280}, "added_kv_proj_dim 1280 must be"),
    ],
)
def test_unsupported_config_is_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        WanConfig.from_dict({**T2V_1_3B, **wrong})


@pytest.mark.parametrize(
    ("latents", "image", "message"),
    [
        ((2, 4, 5), None, "5 columns of latents do not divide into patches of 2"),
        ((2, 3, 4), None, "3 rows of latents do not divide into patches of 2"),
        ((6, 4, 4), None, "6 frames of latents are more than rope_max_seq_len 5 patches of 1"),
        ((2, 12, 4), None, "12 rows of latents are more than rope_max_seq_len 5 patches of 2"),
        ((2, 4, 4), (7, 6), "this transformer takes no image_embeds"),
    ],
)
def test_inputs_that_are_refused(
    latents: tuple[int, ...], image: tuple[int, ...] | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        abstract_velocity(WanConfig.from_dict(SMALL), latents, image)


def test_wrong_number_of_image_tokens_is_rejected() -> None:
    config = WanConfig.from_dict({**SMALL, "image_dim": 6, "pos_embed_seq_len": 10})
    assert abstract_velocity(config, (2, 4, 4), (10, 6)).shape == (1, 2, 4, 4, 16)
    with pytest.raises(ValueError, match="5 tokens, but this network has positions for 10"):
        abstract_velocity(config, (2, 4, 4), (5, 6))


def abstract_velocity(
    config: WanConfig, latents: tuple[int, ...], image: tuple[int, ...] | None
) -> jax.ShapeDtypeStruct:
    def velocity() -> jax.Array:
        network = WanTransformer(config, rngs=nnx.Rngs(0))
        return network(
            jnp.zeros((1, *latents, config.in_channels)),
            jnp.zeros(1),
            jnp.zeros((1, 9, config.text_dim)),
            None if image is None else jnp.zeros((1, *image)),
        )

    return jax.eval_shape(velocity)
