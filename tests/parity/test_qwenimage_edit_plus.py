"""Qwen-Image-Edit of several images compared with diffusers' pipeline in the same process.

Bounds as in test_flux.py. The odd checkpoint reads its references at time 0, like Edit 2511.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from diffusers import QwenImageEditPlusPipeline
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_plus
from PIL import Image, ImageOps

from models import registry
from models.qwenimage.edit.prompts import NUMBERED, ImagePromptFormat
from models.spec.request import RequestError
from tests import coarse
from tests.parity.distances import png
from tests.parity.lazy_dict import LazyDict
from tests.parity.pairs import zeroed
from tests.parity.programs import Programs
from tests.parity.test_flux import Result, assert_far, assert_same
from tests.parity.test_qwenimage_edit import BASE, ODD, PICTURE, REQUESTS, run_diffusers
from tests.parity.tiny_qwenimage import edits, make_edit

AT_ZERO = {**ODD, "transformer": {**ODD["transformer"], "num_layers": 2, "zero_cond_t": True}}
CHECKPOINTS: dict[str, dict[str, Any]] = {"published": {}, "odd": AT_ZERO}
FIELDS = np.random.default_rng(5).integers(0, 256, (3, 4, 3), dtype=np.uint8)
WIDE = Image.fromarray(FIELDS).resize((160, 90), Image.Resampling.NEAREST)
BOTH = (PICTURE, WIDE)


SEEN_PX, READ_PX = 96 * 96, 128 * 128
"""Image areas in pixels, reduced from the published ones."""


def small(programs: Programs) -> Programs:
    """Reduce the pixel areas of images in the pipeline."""
    pipeline: Any = programs.pipeline
    pipeline.prompt_format = replace(pipeline.prompt_format, encoder_px=SEEN_PX, read_px=READ_PX)
    return programs


@pytest.fixture(autouse=True)
def _small_images_of_diffusers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_qwenimage_edit_plus, "CONDITION_IMAGE_SIZE", SEEN_PX)
    monkeypatch.setattr(pipeline_qwenimage_edit_plus, "VAE_IMAGE_SIZE", READ_PX)


class Pair:
    """One checkpoint, loaded by diffusers and by Atelier."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self.folder = make_edit(folder, kind=QwenImageEditPlusPipeline, **config)
        self.diffusers = edits(self.folder)
        with coarse.compiled():
            loaded = registry.load("tiny", str(self.folder), "float32", {})
        self.atelier = small(Programs(loaded, coarse.OPTIONS))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Pair]:
    root = tmp_path_factory.mktemp("plus")
    return LazyDict(lambda name: Pair(root / name, CHECKPOINTS[name]))


def run_atelier(
    programs: Programs, request: Mapping[str, Any], pictures: Sequence[Image.Image], **spoiled: Any
) -> Result:
    first, *others = map(png, pictures)
    images = {"image": first, **{f"reference_images.{i}": image for i, image in enumerate(others)}}
    return Result(*programs.drawn(programs.pipeline.prepare(request, images), **spoiled))


@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_edits_of_two_images(
    pairs: Mapping[str, Pair], checkpoint: str, request_name: str, record_property: Any
) -> None:
    pair, request = pairs[checkpoint], BASE | REQUESTS[request_name]
    expected = run_diffusers(pair.diffusers, request, [*BOTH])
    assert_same(run_atelier(pair.atelier, request, BOTH), expected, record_property)
    if request_name == "no negative prompt":
        assert_far(run_atelier(pair.atelier, request, BOTH[::-1]), expected)
        assert_far(run_atelier(pair.atelier, request, (PICTURE, ImageOps.mirror(WIDE))), expected)


@pytest.mark.parametrize("pictures", [(PICTURE,), (WIDE, PICTURE, WIDE)], ids=len)
def test_edits_of_one_image_and_of_three(
    pairs: Mapping[str, Pair], pictures: Sequence[Image.Image], record_property: Any
) -> None:
    pair = pairs["odd"]
    expected = run_diffusers(pair.diffusers, BASE, [*pictures])
    assert_same(run_atelier(pair.atelier, BASE, pictures), expected, record_property)


def test_wrong_reference_timestep_breaks_parity(pairs: Mapping[str, Pair], tmp_path: Path) -> None:
    expected = run_diffusers(pairs["odd"].diffusers, BASE, [*BOTH])
    folder = make_edit(
        tmp_path,
        kind=QwenImageEditPlusPipeline,
        **{**AT_ZERO, "transformer": {**ODD["transformer"], "num_layers": 2}},
    )
    with coarse.compiled():
        damaged = small(Programs(registry.load("lame", str(folder), "float32", {}), coarse.OPTIONS))
    assert_far(run_atelier(damaged, BASE, BOTH), expected)


def test_missing_image_labels_break_parity(pairs: Mapping[str, Pair]) -> None:
    pair = pairs["published"]
    expected = run_diffusers(pair.diffusers, BASE, [*BOTH])
    with coarse.compiled():
        damaged: Any = registry.load("lame", str(pair.folder), "float32", {})
    damaged.prompt_format = replace(damaged.prompt_format, label="")
    assert_far(run_atelier(small(Programs(damaged, coarse.OPTIONS)), BASE, BOTH), expected)


def test_published_areas(
    pairs: Mapping[str, Pair], monkeypatch: pytest.MonkeyPatch, record_property: Any
) -> None:
    pair, pipeline = pairs["published"], pairs["published"].atelier.pipeline
    monkeypatch.setattr(pipeline, "prompt_format", NUMBERED)
    monkeypatch.setattr(pipeline_qwenimage_edit_plus, "CONDITION_IMAGE_SIZE", 384 * 384)
    monkeypatch.setattr(pipeline_qwenimage_edit_plus, "VAE_IMAGE_SIZE", 1024 * 1024)
    expected = run_diffusers(pair.diffusers, BASE, [*BOTH])
    assert_same(run_atelier(pair.atelier, BASE, BOTH), expected, record_property)


def test_dropped_bias_breaks_parity(pairs: Mapping[str, Pair]) -> None:
    pair = pairs["published"]
    damaged = zeroed(pair.atelier.pipeline.weights, "vision", "merger_out", "bias")
    expected = run_diffusers(pair.diffusers, BASE, [*BOTH])
    assert_far(run_atelier(pair.atelier, BASE, BOTH, weights=damaged), expected)
    swapped = run_atelier(
        pair.atelier,
        BASE,
        BOTH,
        spoil=lambda row: {**row, "references": jnp.flip(row["references"], 0)},
    )
    assert_far(swapped, expected)


def test_invalid_requests_are_named(pairs: Mapping[str, Pair]) -> None:
    pipeline = pairs["published"].atelier.pipeline
    narrow = {"image": png(PICTURE), "reference_images.0": png(Image.new("RGB", (9, 3000)))}
    with pytest.raises(RequestError, match="too narrow") as error:
        pipeline.prepare(BASE, narrow)
    assert error.value.field == "reference_images.0"


def test_the_spec_is_of_several_images(pairs: Mapping[str, Pair]) -> None:
    spec = pairs["published"].atelier.pipeline.spec
    assert (spec.tasks, spec.limits.max_reference_images) == (("image-to-image",), 3)
    assert spec.sized_by_last and not {"mask_image", "strength"} & spec.fields
    assert spec.read_pixels == dict.fromkeys(("image", "reference_images"), 1 << 20)


def test_the_head_names_each_image() -> None:
    showing = ImagePromptFormat("No. {}: ", 100)
    assert showing.head(2) == (
        "No. 1: <|vision_start|><|image_pad|><|vision_end|>"
        "No. 2: <|vision_start|><|image_pad|><|vision_end|>"
    )
    assert [head.count("image_pad") for head in showing.heads(2)] == [0, 1]
