"""Adapters under every layout: one device's images, and rows that change no bits of others."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import cache
from typing import Any

import numpy as np
import pytest

from models import registry
from models.interface.pipeline import Pipeline, PreparedRow
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
"""Relative tolerance of each step: only the order of sums differs."""
MAX_LEVELS, MIN_DB = 2, 60.0
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
"""Single axes with Flux only; layouts of all axes with every family."""


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Model of a family with eight adapters of one bank page; some also change text encoders."""

    @cache
    def made(family: str) -> Model:
        folder = SUITE[family].make(tmp_path_factory.mktemp("checkpoint") / family)
        plain = registry.load(family, str(folder), "float32", {})
        loras = Loras(plain, tmp_path_factory.mktemp("loras"))
        denoiser = loras.names.networks[0].network
        for number in range(ROWS):
            loras.make(f"{number}", (16, 4)[number % 2], only=[denoiser] if number % 3 else [])
        loras.make("dora", only=[denoiser], kind="dora")
        loras.make("lokr", only=[denoiser], kind="lokr")
        fields = {**plain.spec.defaults, **SUITE[family].request}
        return Model(plain, loras, fields)

    return made


@pytest.fixture(scope="module")
def drawn(adapters: Any) -> Any:
    """Pipeline of a family with adapters in its banks, a request, one device's rows and pixels."""

    @cache
    def made(
        family: str, first: str = "0", second: str = "1", *others: str
    ) -> tuple[Pipeline, PreparedRow, list[np.ndarray], np.ndarray]:
        model = adapters(family)
        chosen = [model.loras[first], scaled(model.loras[second], -0.8)]
        chosen += [model.loras[name] for name in others]
        pipeline, place = filled(model.plain, model.loras, chosen, 4)
        prepared = place(pipeline.prepare(asking(model.fields, *chosen), {}))
        return pipeline, prepared, *by(layout(), pipeline, prepared)

    return made


def by(
    layout: Layout, pipeline: Pipeline, prepared: PreparedRow
) -> tuple[list[np.ndarray], np.ndarray]:
    *rows, pixels = denoise(pipeline, prepared, layout)
    return [np.asarray(row["latents"]) for row in rows], np.asarray(pixels)


def gap(output: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(output - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize(("family", "name"), CASES)
def test_adapters_on_a_layout_match_one_device(family: str, name: str, drawn: Any) -> None:
    check_layout(name, *drawn(family))


@pytest.mark.nightly
def test_other_kinds_of_adapters_on_a_layout_match_one_device(drawn: Any) -> None:
    check_layout("tensor 2", *drawn("flux", "0", "lokr", "dora"))


def check_layout(
    name: str,
    pipeline: Pipeline,
    prepared: PreparedRow,
    expected: list[np.ndarray],
    pixels: np.ndarray,
) -> None:
    """Check that a layout's rows and pixels are one device's, but for the order of sums."""
    steps, output = by(layout(**LAYOUTS[name]), pipeline, prepared)
    gaps = [gap(row, reference) for row, reference in zip(steps, expected, strict=True)]
    assert max(gaps) < LATENTS, gaps
    assert_alike(output, pixels)


def assert_alike(output: np.ndarray, expected: np.ndarray) -> None:
    """Assert that two images differ only by rounding."""
    levels = np.abs(output.astype(int) - expected)
    noise = np.mean(np.square(levels))
    assert levels.max() <= MAX_LEVELS
    assert noise == 0 or 10 * np.log10(255**2 / noise) >= MIN_DB


@pytest.mark.parametrize(
    ("family", "name"), [("flux", OF_PROMPTS), ("sdxl", OF_ROWS), ("wan", OF_PROMPTS)]
)
async def test_adapters_of_other_rows_change_no_bit_on_a_layout(
    family: str, name: str, adapters: Any
) -> None:
    """The first step of a row among seven other rows, and among copies of it.

    The row keeps its position. Coarsely compiled layouts round by position, with adapters or
    without; programs compiled as in production do not.
    """
    model = adapters(family)
    with model.engine(ROWS, layout(**LAYOUTS[name]), ROWS, exact(ROWS)) as engine:
        async with AsyncExitStack() as stack:
            requests = [asking(model.fields, model.loras[f"{n}"]) for n in range(ROWS)]
            rows = [await begun(engine, stack, fields) for fields in requests]
            together = latents(engine, rows)
            for place in (0, 3, ROWS - 1):
                assert latents(engine, rows[place : place + 1] * ROWS)[place] == together[place]
    assert len({*together}) == ROWS, "the adapters' rows do not differ"


def latents(engine: Engine, rows: Sequence[Row]) -> list[bytes]:
    """Latents of the rows after the next step, as bytes."""
    return [np.asarray(state["latents"]).tobytes() for state in states_after(engine, rows)]


async def test_rows_of_one_launch_may_have_different_adapters(adapters: Any) -> None:
    """The batch has as many rows as the layout steps in parallel. A row is the same alone and at
    either position.
    """
    model = adapters("flux")
    with model.engine(ROWS, layout(**LAYOUTS[OF_ROWS]), ROWS, exact(2)) as engine:
        async with AsyncExitStack() as stack:
            requests = [asking(model.fields, model.loras[f"{n}"]) for n in range(2)]
            first, second = [await begun(engine, stack, fields) for fields in requests]
            expected = [*latents(engine, [first]), *latents(engine, [second])]
            assert latents(engine, [first, second]) == expected
            assert latents(engine, [second, first]) == expected[::-1]


async def test_adapters_work_with_rows_on_parts_of_a_slice(adapters: Any) -> None:
    """Parts of the slice step the rows, and each part reads the banks of all adapters. The images
    equal those of one device.
    """
    model = adapters("flux")
    requests = [asking(model.fields, model.loras[f"{n}"]) for n in range(SLOTS)]
    with model.engine(SLOTS, layout(), 1) as one_device:
        expected = [await one_device.generate(fields, {}) for fields in requests]
    batching = fast(SLOTS, (SLOTS,))
    with model.engine(SLOTS, layout(context=4), SLOTS, batching) as engine:
        await leave_one(engine, requests[0], BatchLayout(SLOTS, SLOTS))
        results = await asyncio.gather(*(engine.generate(fields, {}) for fields in requests))
    for result, reference in zip(results, expected, strict=True):
        assert_alike(result.pixels, reference.pixels)
    assert len({result.pixels.tobytes() for result in results}) == SLOTS, (
        "the adapters' images do not differ"
    )
