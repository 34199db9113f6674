"""The queue's price of a request knows what its images add to every step."""

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
"""Relative: an image is read at one of several sizes, which have about as many pixels."""


def keys_of(images: Mapping[str, bytes]) -> dict[str, Any]:
    """Return a job's fields that are images, or lists of them; others have more beside each."""
    found: dict[str, Any] = {}
    for path in images:
        name, _, place = path.partition(".")
        if place.isdecimal():
            found.setdefault(name, []).append("a key")
        elif not place:
            found[name] = "a key"
    return found


COUNTED = [name for name, one in EVERY.items() if one.images and one.step_caches]
"""Entries with images whose drafts count tokens, as step caches need them."""


@pytest.mark.parametrize("name", COUNTED)
def test_a_buckets_volume_is_in_proportion_to_tokens(name: str, tmp_path: Path) -> None:
    """At two sizes with the same images: what they add does not grow with what is drawn."""
    entry = EVERY[name]
    pipeline = loaded(name, entry.least(tmp_path), "float32", reader=SHAPES)
    assert isinstance(pipeline, DenoisingPipeline)
    pixels_of_a_token = []
    for times in (1, 4):
        fields = {**pipeline.spec.defaults, **entry.least_request}
        fields["width"] *= times
        images = entry.largest_images or entry.images
        tokens = pipeline.lay_out(fields, images).tokens
        volume = volume_of(pipeline.spec.bucket(fields | keys_of(entry.images)))
        assert volume and tokens
        pixels_of_a_token.append(volume / tokens)
    assert pixels_of_a_token[0] == pytest.approx(pixels_of_a_token[1], rel=CLOSE)


SLICE = Topology.parse("v6e:2x4")
CONTROLLED = [
    (name, base)
    for entry, base in (("sdxl-controlnet", "sdxl"), ("flux-controlnet", "flux-dev"))
    for name in EVERY[entry].published
]
"""Checkpoints with controls, and the same without."""
SHARE = 0.02
"""Share of a step: attention's products of activations are not counted in a control's work."""


def flops(name: str) -> float:
    """Return what the planner counts in a step; where there are ControlNets, one has run."""
    sketch = sketched(PlanRequest(name, SLICE, {}, dtype="bfloat16"))
    return float(sketch.steps[sketch.phase][0].work.flops)


@pytest.mark.parametrize(("name", "base"), CONTROLLED)
def test_a_control_is_priced_by_what_it_computes(name: str, base: str) -> None:
    spec = abstract(name, "bfloat16", logical_layout().of_parameter).spec
    counted = flops(name) / flops(base) - 1
    for kind in spec.controls.values():
        assert kind.work == pytest.approx(counted, abs=SHARE)


def test_controls_count_by_their_work_and_their_share_of_the_steps() -> None:
    spec = abstract("sdxl-controlnet", "bfloat16", logical_layout().of_parameter).spec
    plain = {**spec.defaults, "prompt": "", "width": 1024, "height": 1024}

    def volume(*entries: dict[str, object]) -> float:
        control = [{"name": "canny", "image": "a key", **one} for one in entries]
        found = volume_of(spec.bucket({**plain, "control": control}))
        assert found
        return found / 1024**2

    assert volume() == volume({"scale": 0.0}) == 1.0
    work = spec.controls["canny"].work
    assert 1 + work <= volume({}) < 1 + work + 1 / 8
    assert 1 + 2 * work <= volume({}, {"scale": 0.3}) < 1 + 2 * work + 1 / 8
    assert 1 + work / 4 <= volume({"start": 0.5, "end": 0.75}) < 1 + work / 4 + 1 / 8
    assert spec.bucket({**plain, "control": []}) == spec.bucket(plain)
