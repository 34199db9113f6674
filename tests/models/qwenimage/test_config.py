"""Configs and specs of Qwen-Image: supported values, and refusals by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models import published, registry
from models.checkpoint.folder import CheckpointError
from models.interface.pipeline import Pipeline
from models.loading.sources import SHAPES
from models.media.scaling import size_of_area
from models.qwenimage.config import QwenImageConfig
from models.qwenimage.family import TRANSFORMER
from models.qwenimage.latents import image_ids, text_ids
from models.spec.request import RequestError
from models.vision.qwen_patches import MAX_RATIO


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"guidance_embeds": True}, "guidance_embeds"),
        ({"use_layer3d_rope": True}, "use_layer3d_rope"),
        ({"use_additional_t_cond": True}, "use_additional_t_cond"),
        ({"patch_size": 1}, "patch_size"),
        ({"in_channels": 16}, "in_channels"),
        ({"axes_dims_rope": [16, 56, 58]}, "axes_dims_rope"),
        ({"axes_dims_rope": [16, 55, 57]}, "axes_dims_rope"),
        ({"num_layers": 0}, "num_layers"),
    ],
    ids=str,
)
def test_configs_that_are_not_served(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        QwenImageConfig.from_dict({**TRANSFORMER, **values})


def test_a_key_of_published_files_that_no_network_reads() -> None:
    QwenImageConfig.from_dict({**TRANSFORMER, "pooled_projection_dim": 768})


def test_positions_count_from_the_middle() -> None:
    ids = image_ids((3, 2), (1, 1))
    assert ids[:, 0].tolist() == [0] * 6 + [1]
    assert ids[:6, 1].tolist() == [-2, -2, -1, -1, 0, 0]
    assert ids[:6, 2].tolist() == [-1, 0] * 3
    assert ids[6].tolist() == [1, -1, -1]
    np.testing.assert_array_equal(text_ids(2, [(3, 2), (1, 8)]), [[4] * 3, [5] * 3])


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    published.write("qwen-image", tmp_path)
    return registry.load("qwen-image", str(tmp_path), "bfloat16", {}, reader=SHAPES)


def test_defaults_are_diffusers(pipeline: Pipeline) -> None:
    defaults, limits = pipeline.spec.defaults, pipeline.spec.limits
    assert (defaults["num_inference_steps"], defaults["true_cfg_scale"]) == (50, 4.0)
    assert (defaults["width"], defaults["height"]) == (1024, 1024)
    assert (defaults["max_sequence_length"], limits.max_sequence_length) == (512, 1024)
    assert limits.size_multiple_px == 16


def test_requests_that_do_not_fit_are_refused_by_name(pipeline: Pipeline) -> None:
    fields = {**pipeline.spec.defaults, "prompt": "words", "seed": 0}
    for more, field in (
        ({"width": 1000}, "width"),
        ({"sigmas": [0.5, 0.9]}, "sigmas"),
        ({"max_sequence_length": 1025}, "max_sequence_length"),
        ({"num_inference_steps": 1}, "num_inference_steps"),
    ):
        with pytest.raises(RequestError) as raised:
            pipeline.prepare({**fields, **more}, {})
        assert raised.value.field == field


@pytest.mark.parametrize("name", ["qwen-image-edit", "qwen-image-edit-2511"])
def test_panoramas_are_bounded_by_their_pixels(name: str, tmp_path: Path) -> None:
    published.write(name, tmp_path)
    spec = registry.load(name, str(tmp_path), "bfloat16", {}, reader=SHAPES).spec
    assert spec.sized_area_px is not None and spec.most_ratio["image"] == 150
    sides = size_of_area((8000, 1000), spec.sized_area_px)
    assert sides == (2912, 352) and sides[0] <= spec.limits.max_side_px == 8192
    longest = size_of_area((spec.most_ratio["image"], 1), spec.sized_area_px)
    assert longest[0] // 32 <= MAX_RATIO * (longest[1] // 32), "the image encoder would refuse it"


def test_masked_edit_is_priced_by_the_request_size(tmp_path: Path) -> None:
    published.write("qwen-image-edit", tmp_path)
    spec = registry.load("q", str(tmp_path), "bfloat16", {}, reader=SHAPES).spec
    edit = {"width": 2048, "height": 1024, "image": "a"}
    assert "read_px=1048576" in spec.bucket(edit)
    assert f"read_px={2048 * 1024}" in spec.bucket({**edit, "mask_image": "b"})


def test_the_published_schedule_ends_at_its_terminal_shift(pipeline: Pipeline) -> None:
    fields = {**pipeline.spec.defaults, "prompt": "words", "seed": 0}
    steps = pipeline.prepare(fields, {}).steps
    times = [float(step.values["timestep"]) for step in steps]
    assert times[0] == 1000 and np.isclose(times[-1], 20) and times == sorted(times)[::-1]


def test_parts_of_other_widths_are_refused(tmp_path: Path) -> None:
    published.write("qwen-image", tmp_path)
    file = tmp_path / "text_encoder/config.json"
    file.write_text(file.read_text().replace('"hidden_size": 3584', '"hidden_size": 1792'))
    with pytest.raises(CheckpointError, match="joint_attention_dim is 3584"):
        registry.load("q", str(tmp_path), "bfloat16", {}, reader=SHAPES)
