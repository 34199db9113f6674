"""Adapters under every layout: the images of one device, and in company the same bits as alone."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import cache
from typing import Any

import numpy as np
import pytest

from models import registry
from models.interface.pipeline import Pipeline, Prepared
from models.parallel.axis_rules import Layout
from tests.families.adapters import (
    Loras,
    Model,
    asking,
    begun,
    filled,
    leave_one,
    scaled,
    states_after,
)
from tests.families.suite import SUITE
from tests.parallel.layouts import denoise, layout
from workers.engine.engine import Engine
from workers.engine.row import Row
from workers.programs.batch_sizes import exact, fast
from workers.programs.step_latency import BatchLayout

LATENTS = 1e-4
"""Relative, of each step. Rounding alone: sums in another order."""
MOST_LEVELS, LEAST_DB = 2, 60.0
ROWS, SLOTS = 8, 4

LAYOUTS: Mapping[str, dict[str, Any]] = {
    "cfg 2": {"cfg": 2},
    "ulysses 4": {"context": 4},
    "ring 4": {"context": 4, "ring": 4},
    "tensor 2": {"tensor": 2},
    "cfg 2, ring 2, tensor 2": {"cfg": 2, "context": 2, "ring": 2, "tensor": 2},
    "data 2, fsdp 2, ulysses 2": {"data": 2, "fsdp": 2, "context": 2},
}
OF_PROMPTS, OF_ROWS = list(LAYOUTS)[-2:]
CASES = [
    *(("flux", name) for name in LAYOUTS if name != OF_PROMPTS),
    *((family, name) for family in ("sdxl", "wan") for name in (OF_PROMPTS, OF_ROWS)),
]
"""Axes by themselves with Flux; all of them with every family."""


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """By family: the model, with eight adapters of one page, of which some change text encoders."""

    @cache
    def made(family: str) -> Model:
        folder = SUITE[family].make(tmp_path_factory.mktemp("checkpoint") / family)
        plain = registry.load(family, str(folder), "float32", {})
        loras = Loras(plain, tmp_path_factory.mktemp("loras"))
        denoiser = loras.names.networks[0].network
        for number in range(ROWS):
            loras.make(f"{number}", (16, 4)[number % 2], only=[denoiser] if number % 3 else [])
        fields = {**plain.spec.defaults, **SUITE[family].request}
        return Model(plain, loras, fields)

    return made


@pytest.fixture(scope="module")
def drawn(adapters: Any) -> Any:
    """By family: a pipeline with two adapters in its banks, a request, and its rows and pixels by
    one device."""

    @cache
    def made(family: str) -> tuple[Pipeline, Prepared, list[np.ndarray], np.ndarray]:
        model = adapters(family)
        asked = [model.loras["0"], scaled(model.loras["1"], -0.8)]
        pipeline, place = filled(model.plain, model.loras, asked, 4)
        prepared = place(pipeline.prepare(asking(model.fields, *asked), {}))
        return pipeline, prepared, *by(layout(), pipeline, prepared)

    return made


def by(
    layout: Layout, pipeline: Pipeline, prepared: Prepared
) -> tuple[list[np.ndarray], np.ndarray]:
    *rows, pixels = denoise(pipeline, prepared, layout)
    return [np.asarray(row["latents"]) for row in rows], np.asarray(pixels)


def gap(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize(("family", "name"), CASES)
def test_a_layout_draws_with_adapters_what_one_device_draws(
    family: str, name: str, drawn: Any
) -> None:
    pipeline, prepared, expected, pixels = drawn(family)
    steps, found = by(layout(**LAYOUTS[name]), pipeline, prepared)
    gaps = [gap(one, other) for one, other in zip(steps, expected, strict=True)]
    assert max(gaps) < LATENTS, gaps
    assert_alike(found, pixels)


def assert_alike(found: np.ndarray, expected: np.ndarray) -> None:
    """But for rounding."""
    levels = np.abs(found.astype(int) - expected)
    noise = np.mean(np.square(levels))
    assert levels.max() <= MOST_LEVELS
    assert noise == 0 or 10 * np.log10(255**2 / noise) >= LEAST_DB


@pytest.mark.parametrize(
    ("family", "name"), [("flux", OF_PROMPTS), ("sdxl", OF_ROWS), ("wan", OF_PROMPTS)]
)
async def test_neighbours_with_other_adapters_change_no_bit_under_a_layout(
    family: str, name: str, adapters: Any
) -> None:
    """The first step, by eight rows: beside seven others, and beside its likes.

    At the same place: compiled as coarsely as here, others round otherwise under a layout, with
    adapters or without. Compiled as users compile, none does.
    """
    model = adapters(family)
    with model.engine(ROWS, layout(**LAYOUTS[name]), ROWS, exact(ROWS)) as engine:
        async with AsyncExitStack() as stack:
            requests = [asking(model.fields, model.loras[f"{n}"]) for n in range(ROWS)]
            rows = [await begun(engine, stack, fields) for fields in requests]
            together = latents(engine, rows)
            for place in (0, 3, ROWS - 1):
                assert latents(engine, rows[place : place + 1] * ROWS)[place] == together[place]
    assert len({*together}) == ROWS, "all alike"


def latents(engine: Engine, rows: Sequence[Row]) -> list[bytes]:
    """After the next step."""
    return [np.asarray(state["latents"]).tobytes() for state in states_after(engine, rows)]


async def test_rows_that_share_a_launch_of_a_layout_may_have_any_adapters(adapters: Any) -> None:
    """As many rows as the layout steps side by side: alone, and at either place."""
    model = adapters("flux")
    with model.engine(ROWS, layout(**LAYOUTS[OF_ROWS]), ROWS, exact(2)) as engine:
        async with AsyncExitStack() as stack:
            requests = [asking(model.fields, model.loras[f"{n}"]) for n in range(2)]
            first, second = [await begun(engine, stack, fields) for fields in requests]
            expected = [*latents(engine, [first]), *latents(engine, [second])]
            assert latents(engine, [first, second]) == expected
            assert latents(engine, [second, first]) == expected[::-1]


async def test_adapters_go_with_rows_that_are_stepped_side_by_side(adapters: Any) -> None:
    """By parts of the slice, each of which reads the banks of all; as one device draws them."""
    model = adapters("flux")
    requests = [asking(model.fields, model.loras[f"{n}"]) for n in range(SLOTS)]
    with model.engine(SLOTS, layout(), 1) as one_device:
        expected = [await one_device.generate(fields, {}) for fields in requests]
    batching = fast(SLOTS, (SLOTS,))
    with model.engine(SLOTS, layout(context=4), SLOTS, batching) as engine:
        await leave_one(engine, requests[0], BatchLayout(SLOTS, SLOTS))
        found = await asyncio.gather(*(engine.generate(fields, {}) for fields in requests))
    for one, other in zip(found, expected, strict=True):
        assert_alike(one.pixels, other.pixels)
    assert len({one.pixels.tobytes() for one in found}) == SLOTS, "all alike"
