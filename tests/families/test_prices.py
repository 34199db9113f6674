"""Price of a request in the queue, with the work that images add to its steps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from models.interface.denoising_pipeline import DenoisingPipeline
from models.loading.sources import SHAPES
from service.jobs.scheduling.cost_model import volume_of
from tests.families.suite import EVERY, loaded
from workers.jaxpr.logical_mesh import logical_layout
from workers.plan.make import PlanRequest, sketched
from workers.plan.model import abstract
from workers.slice.topology import Topology

CLOSE = 0.02
"""Relative tolerance: an image is read at one of several sizes with similar numbers of pixels."""


def keys_of(images: Mapping[str, bytes]) -> dict[str, Any]:
    """Return a job's fields that are images or lists of images, and no others."""
    fields: dict[str, Any] = {}
    for path in images:
        name, _, place = path.partition(".")
        if place.isdecimal():
            fields.setdefault(name, []).append("a key")
        elif not place:
            fields[name] = "a key"
    return fields


COUNTED = [name for name, entry in EVERY.items() if entry.images and entry.step_caches]
"""Entries with images whose drafts count tokens, as step caches require."""


@pytest.mark.parametrize("name", COUNTED)
def test_a_buckets_volume_is_in_proportion_to_tokens(name: str, tmp_path: Path) -> None:
    """The volume of a bucket is in proportion to its tokens, for two sizes with the same input
    images, whose tokens do not grow with the output."""
    entry = EVERY[name]
    pipeline = loaded(name, entry.least(tmp_path), "float32", reader=SHAPES)
    assert isinstance(pipeline, DenoisingPipeline)
    pixels_of_a_token = []
    for times in (1, 4):
        fields = {**pipeline.spec.defaults, **entry.smallest_request}
        fields["width"] *= times
        images = entry.largest_images or entry.images
        tokens = pipeline.plan_request(pipeline.read(fields), images).tokens
        volume = volume_of(pipeline.spec.bucket(fields | keys_of(entry.images)))
        assert volume and tokens
        pixels_of_a_token.append(volume / tokens)
    assert pixels_of_a_token[0] == pytest.approx(pixels_of_a_token[1], rel=CLOSE)


SLICE = Topology.parse("v6e:2x4")
CONTROLLED = [
    (name, base)
    for entry, base in (
        ("sdxl-controlnet", "sdxl"),
        ("flux-controlnet", "flux-dev"),
        ("qwenimage-controlnet", "qwen-image"),
        ("zimage-controlnet", "z-image-turbo"),
    )
    for name in EVERY[entry].published
]
"""Checkpoints with controls, and the same checkpoints without."""
SHARE = 0.02
"""Tolerance in shares of a step: a control's work excludes attention's products of activations."""


def flops(name: str) -> float:
    """Return the FLOPs of a step in a plan. If there are ControlNets, one has run."""
    sketch = sketched(PlanRequest(name, SLICE, {}, dtype="bfloat16"))
    return float(sketch.steps[sketch.main_step_kind][0].work.flops)


@pytest.mark.parametrize(("name", "base"), CONTROLLED)
def test_control_price_matches_its_operations(name: str, base: str) -> None:
    spec = abstract(name, "bfloat16", logical_layout().of_parameter).spec
    counted = flops(name) / flops(base) - 1
    for kind in spec.controls.values():
        assert kind.work == pytest.approx(counted, abs=SHARE)


def test_controls_count_by_their_work_and_their_share_of_the_steps() -> None:
    spec = abstract("sdxl-controlnet", "bfloat16", logical_layout().of_parameter).spec
    plain = {**spec.defaults, "prompt": "", "width": 1024, "height": 1024}

    def volume(*entries: dict[str, object]) -> float:
        control = [{"name": "canny", "image": "a key", **entry} for entry in entries]
        pixels = volume_of(spec.bucket({**plain, "control": control}))
        assert pixels
        return pixels / 1024**2

    assert volume() == volume({"scale": 0.0}) == 1.0
    work = spec.controls["canny"].work
    assert 1 + work <= volume({}) < 1 + work + 1 / 8
    assert 1 + 2 * work <= volume({}, {"scale": 0.3}) < 1 + 2 * work + 1 / 8
    assert 1 + work / 4 <= volume({"start": 0.5, "end": 0.75}) < 1 + work / 4 + 1 / 8
    assert spec.bucket({**plain, "control": []}) == spec.bucket(plain)
