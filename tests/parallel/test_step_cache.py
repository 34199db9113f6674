"""Step caches by row: what one device leaves out and draws, every layout leaves out and draws."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from models import registry
from models.interface.pipeline import Pipeline, Prepared, PyTree
from models.nn.layers.step_cache import side_by_side
from models.parallel.axis_rules import Layout
from models.parallel.trace_options import TraceOptions
from models.spec.quality_presets import Quality, StepCache
from tests.parallel.layouts import conditions, layout
from tests.parallel.place import placed
from tests.parity.tiny import make_flux
from workers.programs.compiler import Compiler
from workers.programs.row_tree import row_shardings

LATENTS = 1e-4
"""Relative: sums in another order."""
PRESETS = {
    name: Quality(step_cache=StepCache(kind="first-block", threshold=threshold))
    for name, threshold in {"whole": 1e-9, "kept": 1e9}.items()
}
"""All steps run whole, or as few as may; rows of both share a batch."""
FIELDS: dict[str, Any] = {"prompt": "a red circle", "width": 48, "height": 80}
FIELDS |= {"true_cfg_scale": 2.0, "negative_prompt": "a blue square", "num_inference_steps": 4}
LAYOUTS: dict[str, dict[str, int]] = {"cfg 2, context 2": {"cfg": 2, "context": 2}}
Draw = Callable[..., list[list[PyTree]]]


@pytest.fixture(scope="module")
def flux(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    folder = str(make_flux(tmp_path_factory.mktemp("cached")))
    return registry.load("flux", folder, "float32", {}, qualities=PRESETS)


@pytest.fixture(scope="module")
def prepare(flux: Pipeline) -> Callable[..., Prepared]:
    def prepare(quality: str, seed: int, **more: Any) -> Prepared:
        fields = {**flux.spec.defaults, **FIELDS, **more, "quality": quality, "seed": seed}
        return flux.prepare(fields, {})

    return prepare


@pytest.fixture(scope="module")
def first_rows(flux: Pipeline) -> Callable[..., list[PyTree]]:
    encode = jax.jit(flux.encode)
    return lambda *pictures: [
        jax.tree.map(np.asarray, encode(flux.weights, dict(one.inputs))) for one in pictures
    ]


def drawn(flux: Pipeline, by: Layout, pictures: list[Prepared], rows: list[PyTree]) -> Draw:
    """Draws images of these shapes side by side: each one's row after each step."""
    compiler = Compiler(placed(flux, by), by)
    way = compiler.batch_layouts([len(pictures)], elastic=False)[-1]
    step = pictures[0].steps[0]
    program, _ = compiler.step(step.phase, step.values, way, rows[0])
    told = compiler.conditions(step.phase, step.values, rows[0])

    def draw(pictures: list[Prepared], rows: list[PyTree]) -> list[list[PyTree]]:
        now, after = (
            tuple(jax.device_put(row, compiler.arguments.row_shardings(row)) for row in rows),
            [],
        )
        for at in range(len(pictures[0].steps)):
            now = stepped(program, compiler, told, list(zip(now, pictures, strict=True)), at)
            after.append(jax.tree.map(np.asarray, list(now)))
        return [list(of_one) for of_one in zip(*after, strict=True)]

    return draw


@pytest.fixture(scope="module")
def pair(
    prepare: Callable[..., Prepared], first_rows: Callable[..., Any]
) -> tuple[list[Prepared], list[PyTree]]:
    """One that leaves out what it may, and one that does not."""
    pictures = [prepare("kept", 3), prepare("whole", 4)]
    return pictures, first_rows(*pictures)


@pytest.fixture(scope="module")
def one_device(flux: Pipeline, pair: Any) -> Draw:
    return drawn(flux, layout(), *pair)


def residuals_changed(rows: list[PyTree]) -> list[bool]:
    kept = [row["step_cache"]["residual"] for row in rows]
    return [True, *(not np.array_equal(a, b) for a, b in itertools.pairwise(kept))]


def test_a_row_among_others_is_drawn_as_it_would_be_among_any(
    prepare: Callable[..., Prepared], first_rows: Any, pair: Any, one_device: Draw
) -> None:
    """And the other is the exact image, since nothing of it is left out."""
    first, whole = one_device(*pair)
    assert residuals_changed(first) == [True, False, False, True]
    assert residuals_changed(whole) == [True] * 4
    other = [pair[0][0], prepare("kept", 5)]
    again, _ = one_device(other, first_rows(*other))
    for row, same in zip(first, again, strict=True):
        assert np.array_equal(row["latents"], same["latents"])


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_leaves_out_what_one_device_leaves_out(
    name: str, flux: Pipeline, pair: Any, one_device: Draw
) -> None:
    found = drawn(flux, layout(**LAYOUTS[name]), *pair)(*pair)
    for rows, expected in zip(found, one_device(*pair), strict=True):
        assert residuals_changed(rows) == residuals_changed(expected)
        for row, other in zip(rows, expected, strict=True):
            gap = np.abs(row["latents"] - other["latents"]).max()
            assert gap < LATENTS * np.abs(other["latents"]).max()


def test_what_is_kept_lies_in_shares_whatever_the_way_of_the_next_step(
    flux: Pipeline, prepare: Callable[..., Prepared]
) -> None:
    """One row over all devices, then two side by side, then one again: nothing of it moves between
    steps, and it is what one device draws. Tokens that the devices do not divide lie whole."""
    pictures = [prepare("kept", seed, width=64, height=64) for seed in (6, 7)]
    whole, alone = layout(cfg=2, context=2), layout()
    found, expected = (in_turns(flux, by, pictures, elastic=by is whole) for by in (whole, alone))
    for states, others in zip(found, expected, strict=True):
        for row, other in zip(states, others, strict=True):
            residual = row["step_cache"]["residual"]
            prompts, tokens, width = residual.shape
            (shape,) = {shard.data.shape for shard in residual.addressable_shards}
            assert shape == (prompts // 2, tokens // 2, width)
            gap = np.abs(row["latents"] - np.asarray(other["latents"])).max()
            assert gap < LATENTS * np.abs(other["latents"]).max()
            same = other["step_cache"]["residual"]
            assert np.allclose(residual, same, atol=LATENTS * np.abs(same).max())
    uneven = (
        Compiler(placed(flux, whole), whole)
        .encoding(prepare("kept", 6, width=24, height=40).inputs)
        .row
    )
    assert row_shardings(uneven, whole)["step_cache"]["residual"].spec == PartitionSpec(
        "cfg", None, None
    )


def in_turns(
    flux: Pipeline, by: Layout, pictures: list[Prepared], elastic: bool
) -> list[list[PyTree]]:
    """Two rows after each step: each alone, then both in one batch, and so on; they stay on their
    devices all the time."""
    compiler = Compiler(placed(flux, by), by)
    single, *_, both = compiler.batch_layouts([1, 2], elastic)
    weights = compiler.weights.common
    encode = compiler.tracer.encode(pictures[0].inputs).lower().compile()
    rows = [
        encode(weights, jax.device_put(dict(one.inputs), compiler.arguments.replicated))
        for one in pictures
    ]
    first, found = pictures[0].steps[0], [rows]
    told = compiler.conditions(first.phase, first.values, rows[0])
    programs = {
        way: compiler.step(first.phase, first.values, way, rows[0])[0] for way in (single, both)
    }
    for at in range(len(pictures[0].steps)):
        way = both if at % 2 else single
        pairs = list(zip(rows, pictures, strict=True))
        batches = [pairs] if way.size == 2 else [[pair] for pair in pairs]
        rows = [
            row for batch in batches for row in stepped(programs[way], compiler, told, batch, at)
        ]
        found.append(rows)
    return found


def stepped(
    program: Any, compiler: Compiler, told: Any, batch: list[tuple[PyTree, Prepared]], at: int
) -> tuple[PyTree, ...]:
    steps = [picture.steps[at] for _, picture in batch]
    values = {
        name: np.stack([np.float32(step.values[name]) for step in steps])
        for name in steps[0].values
    }
    weights = compiler.weights.common
    more = conditions(told, weights, batch, at)
    after, finite = program(weights, tuple(row for row, _ in batch), values, *more)
    assert finite.all()
    return after


@pytest.mark.parametrize(
    ("sizes", "rows", "prompts", "expected"),
    [
        ({}, 4, 2, 1),
        ({"data": 2}, 4, 1, 2),
        ({"data": 2}, 4, 2, 1),
        ({"cfg": 2}, 4, 2, 1),
        ({"cfg": 2}, 4, 1, 2),
        ({"data": 2, "cfg": 2}, 4, 2, 2),
        ({"context": 4}, 4, 2, 1),
    ],
)
def test_as_few_rows_run_together_as_keep_all_devices_at_work(
    sizes: dict[str, int], rows: int, prompts: int, expected: int
) -> None:
    with TraceOptions(layout(**sizes)).active():
        assert side_by_side(rows, prompts) == expected
