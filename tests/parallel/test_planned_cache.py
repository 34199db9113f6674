"""Planned step caches on meshes: plans of one kind share a batch, and layouts draw one image."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from models import registry
from models.interface.pipeline import Pipeline, Prepared, PyTree
from models.spec.quality_presets import Quality
from models.spec.step_plan import PlannedCache
from tests.parallel.layouts import layout
from tests.parallel.test_step_cache import FIELDS, LATENTS, Draw, drawn
from tests.parity.tiny import make_flux
from tests.parity.tiny_sdxl import make_sdxl

STEPS = 6


def preset(*whole: int) -> Quality:
    return Quality(
        step_cache=PlannedCache(kind="planned", steps=STEPS, whole=whole, estimate="taylor")
    )


PRESETS = {"whole": preset(*range(STEPS)), "few": preset(0, 1, 4), "fewer": preset(0, 2)}
LAYOUTS: list[dict[str, int]] = [{"cfg": 2, "context": 2}, {"cfg": 2, "tensor": 2}, {"data": 2}]
FAMILIES = {
    "flux": (make_flux, FIELDS),
    "sdxl": (
        make_sdxl,
        {"prompt": "a red circle", "negative_prompt": "", "width": 40, "height": 72}
        | {"guidance_scale": 4.0},
    ),
}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def pipeline(family: str, tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    make, _ = FAMILIES[family]
    folder = str(make(tmp_path_factory.mktemp("planned") / family))
    return registry.load(family, folder, "float32", {}, qualities=PRESETS)


def prepared(pipeline: Pipeline, *presets: str) -> tuple[list[Prepared], list[PyTree]]:
    _, own = FAMILIES[pipeline.spec.name]
    fields = {**pipeline.spec.defaults, **own, "num_inference_steps": STEPS}
    pictures = [
        pipeline.prepare({**fields, "quality": quality, "seed": seed}, {})
        for seed, quality in enumerate(presets)
    ]
    encode = jax.jit(pipeline.encode)
    rows = [
        jax.tree.map(np.asarray, encode(pipeline.weights, dict(one.inputs))) for one in pictures
    ]
    return pictures, rows


@pytest.fixture(scope="module")
def pair(pipeline: Pipeline) -> tuple[list[Prepared], list[PyTree]]:
    return prepared(pipeline, "few", "fewer")


@pytest.fixture(scope="module")
def one_device(pipeline: Pipeline, pair: Any) -> Draw:
    return drawn(pipeline, layout(), *pair)


def whole_steps(rows: list[PyTree]) -> list[int]:
    """Steps after which another residual is kept."""
    kept = [np.zeros(1), *(row["step_cache"]["residual"] for row in rows)]
    return [at for at in range(len(rows)) if not np.array_equal(kept[at], kept[at + 1])]


def test_rows_of_one_program_follow_their_own_plans(
    pipeline: Pipeline, pair: Any, one_device: Draw
) -> None:
    first, second = one_device(*pair)
    assert (whole_steps(first), whole_steps(second)) == ([0, 1, 4], [0, 2])
    other = prepared(pipeline, "few", "whole")
    again, exact = one_device(*other)
    assert whole_steps(exact) == [*range(STEPS)]
    for row, same in zip(first, again, strict=True):
        assert np.array_equal(row["latents"], same["latents"]), "a neighbour changed a bit"


@pytest.mark.parametrize("sizes", LAYOUTS, ids=str)
def test_a_layout_draws_what_one_device_draws(
    sizes: dict[str, int], pipeline: Pipeline, pair: Any, one_device: Draw
) -> None:
    found = drawn(pipeline, layout(**sizes), *pair)(*pair)
    for rows, expected in zip(found, one_device(*pair), strict=True):
        assert whole_steps(rows) == whole_steps(expected)
        for row, other in zip(rows, expected, strict=True):
            gap = np.abs(row["latents"] - other["latents"]).max()
            assert gap < LATENTS * np.abs(other["latents"]).max()
