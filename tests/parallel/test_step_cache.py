"""Step caches by row: every layout skips the same steps as one device, with the same images."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from models import registry
from models.interface.pipeline import Pipeline, PreparedRow, PyTree
from models.nn.layers.step_cache import side_by_side
from models.parallel.axis_rules import Layout
from models.parallel.trace_options import TraceOptions
from models.spec.quality_presets import Quality, StepCache
from tests.parallel.layouts import layout, modulation_arguments
from tests.parallel.placed_pipeline import placed
from tests.parity.tiny import make_flux
from workers.programs.compiler import Compiler
from workers.programs.row_tree import row_shardings

LATENTS = 1e-4
"""Relative tolerance: only the order of sums differs."""
PRESETS = {
    name: Quality(step_cache=StepCache(kind="first-block", threshold=threshold))
    for name, threshold in {"whole": 1e-9, "kept": 1e9}.items()
}
"""One preset runs all steps whole, the other skips as many as allowed. Rows of both share a
batch.
"""
FIELDS: dict[str, Any] = {"prompt": "a red circle", "width": 48, "height": 80}
FIELDS |= {"true_cfg_scale": 2.0, "negative_prompt": "a blue square", "num_inference_steps": 4}
LAYOUTS: dict[str, dict[str, int]] = {"cfg 2, context 2": {"cfg": 2, "context": 2}}
Draw = Callable[..., list[list[PyTree]]]


@pytest.fixture(scope="module")
def flux(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    folder = str(make_flux(tmp_path_factory.mktemp("cached")))
    return registry.load("flux", folder, "float32", {}, qualities=PRESETS)


@pytest.fixture(scope="module")
def prepare(flux: Pipeline) -> Callable[..., PreparedRow]:
    def prepare(quality: str, seed: int, **more: Any) -> PreparedRow:
        fields = {**flux.spec.defaults, **FIELDS, **more, "quality": quality, "seed": seed}
        return flux.prepare(fields, {})

    return prepare


@pytest.fixture(scope="module")
def first_rows(flux: Pipeline) -> Callable[..., list[PyTree]]:
    encode = jax.jit(flux.encode)
    return lambda *images: [
        jax.tree.map(np.asarray, encode(flux.weights, dict(image.inputs))) for image in images
    ]


def drawn(flux: Pipeline, by: Layout, images: list[PreparedRow], rows: list[PyTree]) -> Draw:
    """Return a function that denoises a batch of these shapes and returns each image's rows."""
    compiler = Compiler(placed(flux, by), by)
    batch_layout = compiler.batch_layouts([len(images)], elastic=False)[-1]
    step = images[0].steps[0]
    program, _ = compiler.step(step.program, step.values, batch_layout, rows[0])
    modulations = compiler.modulations(step.program, step.values, rows[0])

    def draw(images: list[PreparedRow], rows: list[PyTree]) -> list[list[PyTree]]:
        now, after = (
            tuple(jax.device_put(row, compiler.arguments.row_shardings(row)) for row in rows),
            [],
        )
        for at in range(len(images[0].steps)):
            now = stepped(program, compiler, modulations, list(zip(now, images, strict=True)), at)
            after.append(jax.tree.map(np.asarray, list(now)))
        return [list(row) for row in zip(*after, strict=True)]

    return draw


@pytest.fixture(scope="module")
def pair(
    prepare: Callable[..., PreparedRow], first_rows: Callable[..., Any]
) -> tuple[list[PreparedRow], list[PyTree]]:
    """An image that skips as many steps as allowed, and one that skips none."""
    images = [prepare("kept", 3), prepare("whole", 4)]
    return images, first_rows(*images)


@pytest.fixture(scope="module")
def one_device(flux: Pipeline, pair: Any) -> Draw:
    return drawn(flux, layout(), *pair)


def residuals_changed(rows: list[PyTree]) -> list[bool]:
    residuals = [row["step_cache"]["residual"] for row in rows]
    return [True, *(not np.array_equal(a, b) for a, b in itertools.pairwise(residuals))]


def test_batched_row_is_independent_of_other_rows(
    prepare: Callable[..., PreparedRow], first_rows: Any, pair: Any, one_device: Draw
) -> None:
    """The other image is exact, because no part of it is skipped."""
    first, exact = one_device(*pair)
    assert residuals_changed(first) == [True, False, False, True]
    assert residuals_changed(exact) == [True] * 4
    others = [pair[0][0], prepare("kept", 5)]
    repeated, _ = one_device(others, first_rows(*others))
    for row, reference in zip(first, repeated, strict=True):
        assert np.array_equal(row["latents"], reference["latents"])


@pytest.mark.parametrize("name", LAYOUTS)
def test_layout_skips_the_same_steps_as_one_device(
    name: str, flux: Pipeline, pair: Any, one_device: Draw
) -> None:
    outputs = drawn(flux, layout(**LAYOUTS[name]), *pair)(*pair)
    for rows, expected in zip(outputs, one_device(*pair), strict=True):
        assert residuals_changed(rows) == residuals_changed(expected)
        for row, reference in zip(rows, expected, strict=True):
            gap = np.abs(row["latents"] - reference["latents"]).max()
            assert gap < LATENTS * np.abs(reference["latents"]).max()


def test_cached_residuals_stay_sharded_across_layouts(
    flux: Pipeline, prepare: Callable[..., PreparedRow]
) -> None:
    """One row on all devices, then two rows in parallel, then one row again.

    The residual does not move between steps and equals that of one device. Tokens that the devices
    do not divide stay whole.
    """
    images = [prepare("kept", seed, width=64, height=64) for seed in (6, 7)]
    sharded, single = layout(cfg=2, context=2), layout()
    outputs, expected = (
        in_turns(flux, by, images, elastic=by is sharded) for by in (sharded, single)
    )
    for states, references in zip(outputs, expected, strict=True):
        for row, reference in zip(states, references, strict=True):
            residual = row["step_cache"]["residual"]
            prompts, tokens, width = residual.shape
            (shape,) = {shard.data.shape for shard in residual.addressable_shards}
            assert shape == (prompts // 2, tokens // 2, width)
            gap = np.abs(row["latents"] - np.asarray(reference["latents"])).max()
            assert gap < LATENTS * np.abs(reference["latents"]).max()
            residual_of_one_device = reference["step_cache"]["residual"]
            assert np.allclose(
                residual,
                residual_of_one_device,
                atol=LATENTS * np.abs(residual_of_one_device).max(),
            )
    uneven = (
        Compiler(placed(flux, sharded), sharded)
        .encoding(prepare("kept", 6, width=24, height=40).inputs)
        .row
    )
    assert row_shardings(uneven, sharded)["step_cache"]["residual"].spec == PartitionSpec(
        "cfg", None, None
    )


def in_turns(
    flux: Pipeline, by: Layout, images: list[PreparedRow], elastic: bool
) -> list[list[PyTree]]:
    """Two rows after each step, stepped alternately in two batches and in one batch.

    The rows never leave their devices.
    """
    compiler = Compiler(placed(flux, by), by)
    single, *_, both = compiler.batch_layouts([1, 2], elastic)
    weights = compiler.weights.common
    encode = compiler.tracer.encode(images[0].inputs).lower().compile()
    rows = [
        encode(weights, jax.device_put(dict(image.inputs), compiler.arguments.replicated))
        for image in images
    ]
    first, history = images[0].steps[0], [rows]
    modulations = compiler.modulations(first.program, first.values, rows[0])
    programs = {
        batch_layout: compiler.step(first.program, first.values, batch_layout, rows[0])[0]
        for batch_layout in (single, both)
    }
    for at in range(len(images[0].steps)):
        batch_layout = both if at % 2 else single
        pairs = list(zip(rows, images, strict=True))
        batches = [pairs] if batch_layout.size == 2 else [[pair] for pair in pairs]
        rows = [
            row
            for batch in batches
            for row in stepped(programs[batch_layout], compiler, modulations, batch, at)
        ]
        history.append(rows)
    return history


def stepped(
    program: Any,
    compiler: Compiler,
    modulations: Any,
    batch: list[tuple[PyTree, PreparedRow]],
    at: int,
) -> tuple[PyTree, ...]:
    steps = [image.steps[at] for _, image in batch]
    values = {
        name: np.stack([np.float32(step.values[name]) for step in steps])
        for name in steps[0].values
    }
    weights = compiler.weights.common
    extra = modulation_arguments(modulations, weights, batch, at)
    after, finite = program(weights, tuple(row for row, _ in batch), values, *extra)
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
def test_minimum_number_of_parallel_rows(
    sizes: dict[str, int], rows: int, prompts: int, expected: int
) -> None:
    with TraceOptions(layout(**sizes)).active():
        assert side_by_side(rows, prompts) == expected
