"""Spec of Wan Animate's published checkpoint, and refused requests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from models.vision.clip import ClipVisionConfig
from models.wan import published
from models.wan.animate_config import AnimateConfig
from models.wan.checkpoint import WanCheckpoint
from models.wan.latents import Grid
from models.wan.spec import make_spec
from tests.models.wan.test_pipeline import UMT5, VAE_2_1

CONFIG = AnimateConfig.from_dict(published.ANIMATE_14B)
CLIP = ClipVisionConfig.from_dict(published.CLIP_VIT_H)


def checkpoint(**changes: object) -> WanCheckpoint:
    parts: dict[str, object] = {
        "transformers": {"transformer": CONFIG},
        "t5": UMT5,
        "vae": VAE_2_1,
        "image_encoder": CLIP,
        "from_image": True,
    }
    return WanCheckpoint(**{**parts, **changes})


def test_a_request_is_one_segment(tmp_path: Path) -> None:
    spec = make_spec("animate", (tmp_path,), checkpoint(), {})
    assert spec.tasks == ("image-to-video",)
    assert spec.needed == {"pose_video", "face_video"}
    assert {"background_video", "mask_video"} <= spec.fields
    assert not {"control_video", "last_image", "conditioning_scale"} & spec.fields
    assert spec.limits.max_frames == spec.defaults["num_frames"] == 77
    expected = {"width": 1280, "height": 720, "num_inference_steps": 20, "guidance_scale": 1.0}
    assert expected.items() <= spec.defaults.items()
    assert spec.most_ratio == {"image": 8}
    assert Grid.of(CONFIG, VAE_2_1).frame == spec.read_frames["image"] == 4


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"vae": replace(VAE_2_1, scale_factor_temporal=8)}, "the parts do not fit"),
        ({"transformers": {"transformer": CONFIG, "transformer_2": CONFIG}}, "has neither"),
        ({"image_encoder": None}, "no image_encoder"),
    ],
)
def test_parts_that_do_not_fit(changed: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        checkpoint(**changed)
