"""Configs and specs of Z-Image: supported values, and refusals by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models import published, registry
from models.checkpoint.folder import CheckpointError
from models.interface.pipeline import Pipeline
from models.loading.sources import SHAPES
from models.spec.request import RequestError
from models.zimage.config import ZImageConfig
from models.zimage.family import TRANSFORMER


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"siglip_feat_dim": 1152}, "siglip_feat_dim"),
        ({"all_patch_size": [1, 2]}, "all_patch_size"),
        ({"n_kv_heads": 10}, "n_kv_heads"),
        ({"axes_dims": [32, 48, 50]}, "axes_dims"),
        ({"n_layers": 0}, "n_layers"),
        ({"n_refiner_layers": -1}, "n_refiner_layers"),
    ],
    ids=str,
)
def test_configs_that_are_not_served(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        ZImageConfig.from_dict({**TRANSFORMER, **values})


def pipeline(name: str, folder: Path) -> Pipeline:
    published.write(name, folder)
    return registry.load(name, str(folder), "bfloat16", {}, reader=SHAPES)


def test_turbo_and_base_have_their_authors_defaults(tmp_path: Path) -> None:
    turbo, base = (pipeline(name, tmp_path / name) for name in ("z-image-turbo", "z-image"))
    for loaded, steps, guidance in ((turbo, 9, 0.0), (base, 50, 5.0)):
        defaults = loaded.spec.defaults
        assert (defaults["num_inference_steps"], defaults["guidance_scale"]) == (steps, guidance)
        assert (defaults["width"], defaults["height"]) == (1024, 1024)
        assert loaded.spec.limits.max_sequence_length == 512
        assert loaded.spec.limits.size_multiple_px == 16


def test_requests_that_do_not_fit_are_refused_by_name(tmp_path: Path) -> None:
    loaded = pipeline("z-image-turbo", tmp_path)
    fields = {**loaded.spec.defaults, "prompt": "words", "seed": 0}
    for more, field in (
        ({"width": 1000}, "width"),
        ({"sigmas": [0.5, 0.9]}, "sigmas"),
        ({"max_sequence_length": 513}, "max_sequence_length"),
        ({"cfg_truncation": 1.5}, "cfg_truncation"),
    ):
        with pytest.raises(RequestError) as raised:
            loaded.prepare({**fields, **more}, {})
        assert raised.value.field == field


def test_steps_behind_the_truncation_are_not_guided(tmp_path: Path) -> None:
    loaded = pipeline("z-image", tmp_path)
    fields = {**loaded.spec.defaults, "prompt": "words", "seed": 0, "num_inference_steps": 8}
    steps = loaded.prepare({**fields, "cfg_truncation": 0.3}, {}).steps
    times = [float(step.values["timestep"]) / 1000 for step in steps]
    assert [step.program.guided for step in steps] == [time <= 0.3 for time in times]
    assert times == sorted(times) and np.isclose(times[0], 0) and times[-1] < 1
    assert {step.program.guided for step in steps} == {True, False}


def test_parts_of_other_widths_are_refused(tmp_path: Path) -> None:
    published.write("z-image", tmp_path)
    file = tmp_path / "text_encoder/config.json"
    file.write_text(file.read_text().replace('"hidden_size": 2560', '"hidden_size": 2048'))
    with pytest.raises(CheckpointError, match="cap_feat_dim is 2560"):
        registry.load("z", str(tmp_path), "bfloat16", {}, reader=SHAPES)
