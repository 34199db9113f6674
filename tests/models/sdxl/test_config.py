"""UNet configs of SDXL: expansion to levels, and unsupported values refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from jaxtyping import config as type_checks

from models.sdxl.config import UNetConfig


@pytest.fixture(autouse=True)
def as_in_production(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable jaxtyping, so only Atelier's own checks can detect a wrong type."""
    monkeypatch.setattr(type_checks, "jaxtyping_disable", True)


SDXL_BASE: dict[str, Any] = {
    "_class_name": "UNet2DConditionModel",
    "_diffusers_version": "0.19.0.dev0",
    "act_fn": "silu",
    "addition_embed_type": "text_time",
    "addition_embed_type_num_heads": 64,
    "addition_time_embed_dim": 256,
    "attention_head_dim": [5, 10, 20],
    "block_out_channels": [320, 640, 1280],
    "center_input_sample": False,
    "class_embed_type": None,
    "class_embeddings_concat": False,
    "conv_in_kernel": 3,
    "conv_out_kernel": 3,
    "cross_attention_dim": 2048,
    "cross_attention_norm": None,
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
    "downsample_padding": 1,
    "dual_cross_attention": False,
    "encoder_hid_dim": None,
    "encoder_hid_dim_type": None,
    "flip_sin_to_cos": True,
    "freq_shift": 0,
    "in_channels": 4,
    "layers_per_block": 2,
    "mid_block_only_cross_attention": None,
    "mid_block_scale_factor": 1,
    "mid_block_type": "UNetMidBlock2DCrossAttn",
    "norm_eps": 1e-05,
    "norm_num_groups": 32,
    "num_attention_heads": None,
    "num_class_embeds": None,
    "only_cross_attention": False,
    "out_channels": 4,
    "projection_class_embeddings_input_dim": 2816,
    "resnet_out_scale_factor": 1.0,
    "resnet_skip_time_act": False,
    "resnet_time_scale_shift": "default",
    "sample_size": 128,
    "time_cond_proj_dim": None,
    "time_embedding_act_fn": None,
    "time_embedding_dim": None,
    "time_embedding_type": "positional",
    "timestep_post_act": None,
    "transformer_layers_per_block": [1, 2, 10],
    "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
    "upcast_attention": None,
    "use_linear_projection": True,
}
"""`unet/config.json` of SDXL base 1.0, as published."""


def test_levels_of_sdxl_base() -> None:
    config = UNetConfig.from_dict(SDXL_BASE)
    assert [level.depths for level in config.down_levels] == [None, (2, 2), (10, 10)]
    assert [level.depths for level in config.up_levels] == [(10, 10, 10), (2, 2, 2), None]
    assert (config.mid_level.depths, config.mid_level.heads) == ((10,), 20)
    assert (config.time_features, config.text_features, config.downsampling) == (1280, 2048, 4)


def test_layers_that_differ_within_a_level() -> None:
    config = UNetConfig.from_dict(
        SDXL_BASE
        | {
            "transformer_layers_per_block": [0, [2, 2], [4, 4]],
            "reverse_transformer_layers_per_block": [[4, 4, 10], [2, 1, 1], 1],
        }
    )
    assert [level.depths for level in config.down_levels] == [None, (2, 2), (4, 4)]
    assert [level.depths for level in config.up_levels] == [(4, 4, 10), (2, 1, 1), None]
    assert config.mid_level.depths == (4,)


def test_other_middles() -> None:
    plain = UNetConfig.from_dict(SDXL_BASE | {"mid_block_type": "UNetMidBlock2D"}).mid_level
    assert (plain.depths, plain.residual_blocks) == (None, 1)


def test_levels_without_attention_need_no_heads() -> None:
    heads = {"attention_head_dim": [None, 10, 20], "cross_attention_dim": [None, 2048, 2048]}
    assert UNetConfig.from_dict(SDXL_BASE | heads).text_features == 2048


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"in_channels": 0}, "in_channels"),
        ({"in_channels": "4"}, "in_channels"),
        ({"conv_in_kernel": 4}, "conv_in_kernel 4"),
        ({"act_fn": "tanh"}, "act_fn: 'tanh'"),
        ({"norm_num_groups": None}, "norm_num_groups"),
        ({"norm_num_groups": 30}, "norm_num_groups, 30"),
        ({"block_out_channels": []}, "block_out_channels"),
        ({"block_out_channels": [320, 640]}, "down_block_types: 3 blocks"),
        ({"down_block_types": ["DownBlock2D", "AttnDownBlock2D", "DownBlock2D"]}, "AttnDownBlock"),
        ({"up_block_types": ["UpBlock2D", "SimpleCrossAttnUpBlock2D", "UpBlock2D"]}, "SimpleCross"),
        ({"mid_block_type": "UNetMidBlock2DSimpleCrossAttn"}, "mid_block_type"),
        ({"layers_per_block": [2, 2]}, "layers_per_block: 2 values for 3 levels"),
        ({"layers_per_block": 0}, "layers_per_block"),
        ({"attention_head_dim": None}, "attention_head_dim"),
        ({"attention_head_dim": [5, 10, 2000]}, "2000 heads"),
        ({"num_attention_heads": 8}, "attention_head_dim counts the heads"),
        ({"cross_attention_dim": [2048, 2048, 768]}, "cross_attention_dim"),
        ({"cross_attention_dim": None}, "cross_attention_dim"),
        ({"only_cross_attention": [True]}, "only_cross_attention"),
        ({"transformer_layers_per_block": [1, [2, 2], 10]}, "reverse_transformer_layers_per_block"),
        ({"transformer_layers_per_block": [1, -1, 10]}, "transformer_layers_per_block: -1"),
        ({"reverse_transformer_layers_per_block": [10, 2]}, "2 values for 3 levels"),
        ({"reverse_transformer_layers_per_block": [10, [2, 2], 1]}, r"\(2, 2\) should be"),
        ({"addition_embed_type": "image"}, "addition_embed_type: 'image'"),
        ({"addition_time_embed_dim": None}, "addition_time_embed_dim is needed"),
        ({"projection_class_embeddings_input_dim": None}, "projection_class_embeddings"),
        ({"encoder_hid_dim_type": "text_proj"}, "encoder_hid_dim is needed"),
        ({"encoder_hid_dim_type": "ip_image_proj"}, "image conditions"),
        ({"class_embed_type": "timestep"}, "class labels"),
        ({"attention_type": "gated"}, "GLIGEN"),
        ({"dual_cross_attention": True}, "dual_cross_attention"),
        ({"time_embedding_type": "fourier"}, "time_embedding_type"),
        ({"downsample_padding": 2}, "downsample_padding"),
        ({"resnet_time_scale_shift": "ada_group"}, "resnet_time_scale_shift"),
    ],
)
def test_unsupported_config_is_named(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        UNetConfig.from_dict(SDXL_BASE | wrong)
