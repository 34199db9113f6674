"""Planned step caches on meshes: plans of one kind share a batch; layouts give equal images."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from models import registry
from models.interface.pipeline import Pipeline, PreparedRow, PyTree
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


def prepared(pipeline: Pipeline, *presets: str) -> tuple[list[PreparedRow], list[PyTree]]:
    _, fields_of_family = FAMILIES[pipeline.spec.name]
    fields = {**pipeline.spec.defaults, **fields_of_family, "num_inference_steps": STEPS}
    images = [
        pipeline.prepare({**fields, "quality": quality, "seed": seed}, {})
        for seed, quality in enumerate(presets)
    ]
    encode = jax.jit(pipeline.encode)
    rows = [
        jax.tree.map(np.asarray, encode(pipeline.weights, dict(image.inputs))) for image in images
    ]
    return images, rows


@pytest.fixture(scope="module")
def pair(pipeline: Pipeline) -> tuple[list[PreparedRow], list[PyTree]]:
    return prepared(pipeline, "few", "fewer")


@pytest.fixture(scope="module")
def one_device(pipeline: Pipeline, pair: Any) -> Draw:
    return drawn(pipeline, layout(), *pair)


def whole_steps(rows: list[PyTree]) -> list[int]:
    """Indices of the steps that changed the cached residual."""
    residuals = [np.zeros(1), *(row["step_cache"]["residual"] for row in rows)]
    return [at for at in range(len(rows)) if not np.array_equal(residuals[at], residuals[at + 1])]


def test_rows_of_one_program_follow_their_own_plans(
    pipeline: Pipeline, pair: Any, one_device: Draw
) -> None:
    first, second = one_device(*pair)
    assert (whole_steps(first), whole_steps(second)) == ([0, 1, 4], [0, 2])
    others = prepared(pipeline, "few", "whole")
    repeated, exact = one_device(*others)
    assert whole_steps(exact) == [*range(STEPS)]
    for row, reference in zip(first, repeated, strict=True):
        assert np.array_equal(row["latents"], reference["latents"]), (
            "another row of the batch changed bits"
        )


@pytest.mark.parametrize("sizes", LAYOUTS, ids=str)
def test_layout_matches_one_device(
    sizes: dict[str, int], pipeline: Pipeline, pair: Any, one_device: Draw
) -> None:
    outputs = drawn(pipeline, layout(**sizes), *pair)(*pair)
    for rows, expected in zip(outputs, one_device(*pair), strict=True):
        assert whole_steps(rows) == whole_steps(expected)
        for row, reference in zip(rows, expected, strict=True):
            gap = np.abs(row["latents"] - reference["latents"]).max()
            assert gap < LATENTS * np.abs(reference["latents"]).max()
