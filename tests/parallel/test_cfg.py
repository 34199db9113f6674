"""The two passes of guidance on the halves of `cfg`, and rows there where nothing is guided."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from jax.stages import Compiled

from models import registry
from models.interface.pipeline import Pipeline, PyTree
from models.parallel.axis_rules import Layout
from tests.parallel.layouts import conditions, layout
from tests.parallel.place import placed
from tests.parity.tiny import make_flux
from workers.programs.compiler import Compiler

FIELDS: dict[str, Any] = {"prompt": "a red circle", "width": 48, "height": 80}
GUIDED = {"true_cfg_scale": 2.0, "negative_prompt": "a blue square"}
LATENTS = 1e-4
"""Relative, of one step: sums in another order."""
EMBEDDED = 1.1
"""Of the even share: time and text are embedded everywhere."""


@pytest.fixture(scope="module")
def flux(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    return registry.load("flux", str(make_flux(tmp_path_factory.mktemp("cfg"))), "float32", {})


def first_step(
    flux: Pipeline, by: Layout, seeds: tuple[int, ...], **fields: Any
) -> tuple[Compiled, list[PyTree]]:
    """The program of a step, and the rows after it: one a seed, side by side."""
    compiler = Compiler(placed(flux, by), by)
    every = {**flux.spec.defaults, **FIELDS, **fields, "num_inference_steps": 2}
    prepared = [flux.prepare({**every, "seed": seed}, {}) for seed in seeds]
    encode = compiler.tracer.encode(prepared[0].inputs).lower().compile()
    rows = tuple(encode(compiler.weights.common, dict(one.inputs)) for one in prepared)
    step = prepared[0].steps[0]
    way = compiler.batch_layouts([len(seeds)], elastic=False)[-1]
    program, _ = compiler.step(step.phase, step.values, way, rows[0])
    values = {
        name: np.stack([np.float32(value)] * len(seeds)) for name, value in step.values.items()
    }
    told = compiler.conditions(step.phase, step.values, rows[0])
    pairs = list(zip(rows, prepared, strict=True))
    more = conditions(told, compiler.weights.common, pairs, 0)
    after, finite = program(compiler.weights.common, rows, values, *more)
    assert finite.all()
    return program, list(after)


def work(program: Compiled) -> float:
    return float(program.cost_analysis()["flops"])


def test_without_guidance_its_devices_share_the_rows(flux: Pipeline) -> None:
    whole, expected = first_step(flux, layout(), (3, 4))
    shared, found = first_step(flux, layout(cfg=2), (3, 4))
    assert work(shared) <= EMBEDDED * work(whole) / 2
    for row, other in zip(found, expected, strict=True):
        gap = np.abs(np.asarray(row["latents"]) - np.asarray(other["latents"])).max()
        assert gap <= LATENTS * np.abs(np.asarray(other["latents"])).max()


def test_the_passes_exchange_their_predictions_and_nothing_else(flux: Pipeline) -> None:
    """Two collectives of the latents' size: one half hears the other's, and both the sum."""
    program, (row,) = first_step(flux, layout(cfg=2), (3,), **GUIDED)
    sent = re.findall(
        r"= \(?f32\[([\d,]*)\][^=]*? (?:all-gather|all-reduce|collective-permute|all-to-all)"
        r"(?:-start)?\(",
        program.as_text(),
    )
    sizes = [np.prod([int(size) for size in shape.split(",") if size]) for shape in sent]
    assert 0 < len(sizes) <= 2 and max(sizes) <= row["latents"].size, sent
