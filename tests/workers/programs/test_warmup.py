"""Warm-up of models that need images in addition to text."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import pytest

from models.interface.pipeline import Fields, Pipeline, PreparedRow
from models.parallel.axis_rules import Layout
from models.sdxl.published import SDXL_INPAINTING
from models.spec.request import RequestError
from models.wan import published
from models.wan.config import WanConfig
from models.wan.experts import Expert
from tests.models.sdxl.test_pipeline import abstract_pipeline
from tests.models.wan import test_pipeline as wan
from tests.parity.tiny import t5_tokenizer
from tests.workers.toy import SPEC, ToyPipeline
from workers.engine.engine import Engine
from workers.jaxpr.logical_mesh import logical_layout
from workers.plan.model import abstract
from workers.programs import warmup


class Picky(ToyPipeline):
    """Toy pipeline that asks for one image after another."""

    def __init__(self, *needs: str) -> None:
        super().__init__()
        self.needs = needs

    def prepare(self, fields: Fields, images: Mapping[str, bytes]) -> PreparedRow:
        for name in self.needs:
            if name not in images:
                raise RequestError(name, "is needed")
        return super().prepare(fields, images)


@pytest.mark.parametrize(
    "needs", [(), ("image",), ("mask_image", "image", "image_prompts.0.image")]
)
async def test_warm_up_adds_required_images(needs: tuple[str, ...], layout: Layout) -> None:
    pipeline = Picky(*needs)
    engine = Engine(pipeline, layout, slots=1)
    try:
        await engine.readiness.warm_up([{}])
    finally:
        engine.close()
    assert set(pipeline.images) == set(needs)


@pytest.mark.parametrize(("needs", "fields"), [("strength", {}), ("image", {"width": 31})])
def test_other_request_errors_are_raised(needs: str, fields: Fields) -> None:
    with pytest.raises(RequestError, match=r"strength|width"):
        warmup.prepare(Picky(needs), fields)


def test_rejected_image_is_not_sent_again() -> None:
    class Blind(ToyPipeline):
        def prepare(self, fields: Fields, images: Mapping[str, bytes]) -> PreparedRow:
            raise RequestError("image", "is not an image")

    with pytest.raises(RequestError, match="is not an image"):
        warmup.prepare(Blind(), {})


def test_defaults_are_those_of_the_models_first_task() -> None:
    spec = SPEC.model_copy(
        update={"tasks": ("inpainting",), "task_defaults": {"inpainting": {"guidance_scale": 7.5}}}
    )
    first, second = warmup.requests(spec, [{}, {"width": 64}])
    assert (first["guidance_scale"], first["width"], first["prompt"]) == (7.5, 32, "")
    assert second == {**first, "width": 64}


@pytest.mark.parametrize(("kind", "images"), [("kontext", {"image"}), ("dev", set())])
def test_editing_model_is_warmed_up_with_an_image(kind: str, images: set[str]) -> None:
    pipeline = abstract(f"flux-{kind}", "bfloat16", logical_layout().of_parameter)
    (fields,) = warmup.requests(pipeline.spec, [{"width": 256, "height": 256}])
    prepared, stood_in = warmup.prepare_with_stand_ins(pipeline, fields)
    assert set(stood_in) == images
    assert ("reference" in prepared.inputs) == bool(images)


def wan_pipeline(
    config: published.Config, words: Path, monkeypatch: pytest.MonkeyPatch
) -> Pipeline:
    t5_tokenizer(512).save_pretrained(words)
    transformers: dict[Expert, WanConfig] = {"transformer": WanConfig.from_dict(config)}
    checkpoint = dataclasses.replace(wan.CHECKPOINTS["2.1 i2v"], transformers=transformers)
    monkeypatch.setitem(wan.CHECKPOINTS, "2.1 i2v", checkpoint)
    return wan.make("2.1 i2v", words)


@pytest.mark.parametrize(("config", "pictures"), [("I2V_14B", 1), ("FLF2V_14B", 2)])
def test_wan_from_images(
    config: str, pictures: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = wan_pipeline(getattr(published, config), tmp_path, monkeypatch)
    (fields,) = warmup.requests(pipeline.spec, [{"width": 64, "height": 48, "num_frames": 5}])
    prepared = warmup.prepare(pipeline, fields)
    assert prepared.inputs["image"].shape == (48, 64, 3)
    assert len(prepared.inputs["clip_pixels"]) == pictures


def test_sdxl_with_nine_channels(tmp_path: Path) -> None:
    pipeline = abstract_pipeline(SDXL_INPAINTING, tmp_path)
    (fields,) = warmup.requests(pipeline.spec, [{"width": 64, "height": 48}])
    assert "inpainting" in warmup.prepare(pipeline, fields).bucket
