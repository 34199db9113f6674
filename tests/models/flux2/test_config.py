"""Configs and specs of FLUX.2: supported values, and refusals by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from models import published, registry
from models.checkpoint.folder import CheckpointError
from models.flux2.config import Flux2Config
from models.flux2.family import TRANSFORMER
from models.interface.pipeline import Pipeline
from models.loading.sources import SHAPES
from models.media.scaling import within_pixels
from models.spec.request import RequestError


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"patch_size": 2}, "patch_size"),
        ({"in_channels": 126}, "in_channels"),
        ({"out_channels": 64}, "out_channels"),
        ({"axes_dims_rope": [32, 32, 64]}, "axes_dims_rope"),
        ({"axes_dims_rope": [32, 32, 33, 31]}, "axes_dims_rope"),
        ({"num_layers": -1}, "num_layers"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
    ],
    ids=str,
)
def test_configs_that_are_not_served(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Flux2Config.from_dict({**TRANSFORMER, **values})


def pipeline(name: str, folder: Path) -> Pipeline:
    published.write(name, folder)
    return registry.load(name, str(folder), "bfloat16", {}, reader=SHAPES)


def test_distilled_and_base_have_their_authors_defaults(tmp_path: Path) -> None:
    distilled, base = (
        pipeline(name, tmp_path / name).spec for name in ("flux2-klein-4b", "flux2-klein-base-9b")
    )
    assert distilled.defaults["num_inference_steps"] == 4
    assert not {"guidance_scale", "negative_prompt"} & distilled.fields
    assert base.defaults["num_inference_steps"] == 50
    assert base.defaults["guidance_scale"] == 4.0
    for spec in (distilled, base):
        assert (spec.defaults["width"], spec.defaults["height"]) == (1024, 1024)
        assert spec.limits.size_multiple_px == 16
        assert spec.limits.max_reference_images == 3
        assert spec.fields >= {"image", "reference_images"}


def test_dev_has_guidance_as_an_input_and_ten_images(tmp_path: Path) -> None:
    loaded = pipeline("flux2-dev", tmp_path)
    spec = loaded.spec
    assert (spec.defaults["num_inference_steps"], spec.defaults["guidance_scale"]) == (50, 4.0)
    assert not {"negative_prompt", "mask_image", "strength"} & spec.fields
    assert spec.tasks == ("text-to-image", "image-to-image")
    assert spec.limits.max_reference_images == 9
    prepared = loaded.prepare({**spec.defaults, "prompt": "words", "seed": 0}, {})
    assert not any(step.program.guided for step in prepared.steps)
    assert prepared.steps[0].values["guidance_scale"] == 4.0
    assert prepared.inputs["ids"].shape == (1, 512)


@pytest.mark.parametrize(("name", "embeds"), [("flux2-dev", False), ("flux2-klein-4b", True)])
def test_guidance_of_the_other_pipeline_is_refused(name: str, embeds: bool, tmp_path: Path) -> None:
    published.write(name, tmp_path)
    file = tmp_path / "transformer/config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"guidance_embeds": embeds}))
    with pytest.raises(CheckpointError, match="guidance_embeds must be"):
        registry.load("k", str(tmp_path), "bfloat16", {}, reader=SHAPES)


def test_panoramas_are_bounded_by_their_pixels(tmp_path: Path) -> None:
    loaded = pipeline("flux2-klein-4b", tmp_path)
    spec, limits = loaded.spec, loaded.spec.limits
    sides = within_pixels((8000, 1000), spec.sized_within_px)
    width, height = (side - side % limits.size_multiple_px for side in sides)
    assert (width, height) == (2896, 352) and width <= limits.max_side_px == 5792
    fields = {**spec.defaults, "prompt": "words", "seed": 0, "width": width, "height": height}
    prepared = loaded.prepare(fields, {})
    assert prepared.inputs["noise"].shape == (22, 181, 128)
    assert f"width={width},height={height}" in spec.bucket(fields)


def test_requests_that_do_not_fit_are_refused_by_name(tmp_path: Path) -> None:
    loaded = pipeline("flux2-klein-base-4b", tmp_path)
    fields = {**loaded.spec.defaults, "prompt": "words", "seed": 0}
    for more, field in (
        ({"width": 1000}, "width"),
        ({"sigmas": [0.5, 0.9]}, "sigmas"),
        ({"max_sequence_length": 513}, "max_sequence_length"),
        ({"guidance_scale": -1.0}, "guidance_scale"),
    ):
        with pytest.raises(RequestError) as raised:
            loaded.prepare({**fields, **more}, {})
        assert raised.value.field == field


def test_distilled_model_has_no_guidance(tmp_path: Path) -> None:
    loaded = pipeline("flux2-klein-4b", tmp_path)
    fields = {**loaded.spec.defaults, "prompt": "words", "seed": 0, "guidance_scale": 5.0}
    prepared = loaded.prepare(fields, {})
    assert not any(step.program.guided for step in prepared.steps)
    assert prepared.inputs["ids"].shape == (1, 512)


def test_parts_of_other_widths_are_refused(tmp_path: Path) -> None:
    published.write("flux2-klein-4b", tmp_path)
    file = tmp_path / "text_encoder/config.json"
    file.write_text(file.read_text().replace('"hidden_size": 2560', '"hidden_size": 2048'))
    with pytest.raises(CheckpointError, match="joint_attention_dim is 7680"):
        registry.load("k", str(tmp_path), "bfloat16", {}, reader=SHAPES)


def test_a_text_encoder_without_those_states_is_refused(tmp_path: Path) -> None:
    published.write("flux2-klein-4b", tmp_path)
    file = tmp_path / "text_encoder/config.json"
    file.write_text(file.read_text().replace('"num_hidden_layers": 36', '"num_hidden_layers": 26'))
    with pytest.raises(CheckpointError, match="but not 27"):
        registry.load("k", str(tmp_path), "bfloat16", {}, reader=SHAPES)
