from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from models.text.umt5 import UMT5Config
from models.vae.video_config import VideoVaeConfig
from models.vision.clip import ClipVisionConfig
from models.wan.checkpoint import WanCheckpoint
from models.wan.config import WanConfig
from models.wan.vace_config import VaceConfig

CONFIG = WanConfig(
    num_attention_heads=2, attention_head_dim=8, text_dim=24, ffn_dim=20, num_layers=1
)
FROM_IMAGE = replace(CONFIG, in_channels=36)
EMBEDDED = replace(FROM_IMAGE, image_dim=26, added_kv_proj_dim=16)
T5, VAE = UMT5Config(d_model=24), VideoVaeConfig()
VISION = ClipVisionConfig(hidden_size=26, num_attention_heads=2, image_size=30, patch_size=10)


def text(**changes: Any) -> WanCheckpoint:
    fields: dict[str, Any] = {"transformers": {"transformer": CONFIG}, "t5": T5, "vae": VAE}
    return WanCheckpoint(**(fields | changes))


CONTROL = VaceConfig(**vars(CONFIG), vace_layers=(0,))


def vace(config: WanConfig = CONTROL, **changes: Any) -> WanCheckpoint:
    return text(**({"transformers": {"transformer": config}} | changes))


def picture(config: WanConfig = EMBEDDED, **changes: Any) -> WanCheckpoint:
    fields: dict[str, Any] = {
        "transformers": {"transformer": config},
        "from_image": True,
        "image_encoder": VISION,
    }
    return text(**(fields | changes))


def test_the_class_of_the_index_and_expand_timesteps_decide_the_tasks() -> None:
    assert text().tasks == ("text-to-video",)
    assert picture().tasks == ("image-to-video",)
    both = ("text-to-video", "image-to-video")
    assert vace().tasks == both
    assert text(expand_timesteps=True).tasks == both
    assert text(expand_timesteps=True, from_image=True).tasks == both


def test_which_checkpoints_accept_a_last_frame() -> None:
    assert not text().takes_last_image
    assert not text(expand_timesteps=True, from_image=True).takes_last_image
    assert not picture().takes_last_image
    assert vace().takes_last_image
    assert picture(FROM_IMAGE, image_encoder=None).takes_last_image
    paired = picture(replace(EMBEDDED, pos_embed_seq_len=20))
    assert paired.takes_last_image
    assert paired.needs_last_image


def test_the_boundary_is_a_share_of_the_schedulers_timesteps() -> None:
    checkpoint = text(transformers={"transformer_2": CONFIG}, boundary_ratio=0.5)
    assert checkpoint.experts(500).boundary == 250
    assert checkpoint.experts(500).present == {"transformer_2"}
    assert text().experts(1000).boundary is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"transformers": {}}, "neither transformer nor transformer_2"),
        ({"transformers": {"transformer_2": CONFIG}}, "boundary_ratio"),
        (
            {
                "transformers": {
                    "transformer": CONFIG,
                    "transformer_2": replace(CONFIG, patch_size=(1, 1, 1)),
                }
            },
            "patch_size of transformer is",
        ),
        ({"t5": UMT5Config(d_model=25)}, "text_dim is 24, but text_encoder d_model is 25"),
        (
            {"vae": VideoVaeConfig(z_dim=2, latents_mean=(0.0,) * 2, latents_std=(1.0,) * 2)},
            "z_dim is 2",
        ),
        ({"from_image": True}, r"in_channels is 16, but vae z_dim \+ mask and image latents"),
        ({"transformers": {"transformer": replace(CONFIG, out_channels=5)}}, "out_channels is 5"),
        (
            {
                "transformers": {"transformer": replace(CONFIG, patch_size=(1, 1, 2))},
                "expand_timesteps": True,
            },
            r"expand_timesteps with patch_size \(1, 1, 2\)",
        ),
        ({"transformers": {"transformer": replace(CONFIG, image_dim=26)}}, "image_dim 26"),
    ],
)
def test_parts_that_do_not_fit_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        text(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"config": replace(CONTROL, vace_in_channels=95)}, "vace_in_channels is 95, but channels"),
        ({"config": replace(CONTROL, patch_size=(2, 2, 2))}, "patches of one frame"),
        (
            {
                "transformers": {
                    "transformer": replace(CONTROL, num_layers=2, vace_layers=(0, 1)),
                    "transformer_2": CONTROL,
                }
            },
            "vace_layers of transformer is",
        ),
    ],
)
def test_control_that_does_not_fit_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        vace(**changes)


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (EMBEDDED, {"image_encoder": None}, "image_dim is 26, but there is no image_encoder"),
        (replace(EMBEDDED, image_dim=27), {}, "image_encoder hidden_size is 26"),
        (replace(EMBEDDED, pos_embed_seq_len=19), {}, "two images from image_encoder is 20"),
    ],
)
def test_mismatched_image_encoders_are_named(
    config: WanConfig, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        picture(config, **changes)


def test_null_components_of_the_index_are_not_looked_for(tmp_path: Path) -> None:
    parts = {
        "transformer_2": {"num_attention_heads": 2, "text_dim": 24, "in_channels": 36},
        "text_encoder": {"d_model": 24},
        "vae": {"_class_name": "AutoencoderKLWan"},
    }
    index = {
        "_class_name": "WanImageToVideoPipeline",
        "transformer": [None, None],
        "transformer_2": ["diffusers", "WanTransformer3DModel"],
        "image_encoder": ["transformers", "CLIPVisionModel"],
        "boundary_ratio": 1.0,
    }
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    for name, config in parts.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    checkpoint = WanCheckpoint.read(tmp_path)
    assert set(checkpoint.transformers) == {"transformer_2"}
    assert checkpoint.image_encoder is None, "no transformer here reads an image embedding"
    assert (checkpoint.boundary_ratio, checkpoint.expand_timesteps) == (1.0, False)
