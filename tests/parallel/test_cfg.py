"""The `cfg` axis: both passes of classifier-free guidance in parallel, or rows without guidance."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from jax.stages import Compiled

from models import registry
from models.interface.pipeline import Pipeline, PyTree
from models.parallel.axis_rules import Layout
from tests.parallel.layouts import layout, modulation_arguments
from tests.parallel.placed_pipeline import placed
from tests.parity.tiny import make_flux
from workers.programs.compiler import Compiler

FIELDS: dict[str, Any] = {"prompt": "a red circle", "width": 48, "height": 80}
GUIDED = {"true_cfg_scale": 2.0, "negative_prompt": "a blue square"}
LATENTS = 1e-4
"""Relative tolerance of one step: only the order of sums differs."""
EMBEDDED = 1.1
"""Work relative to an even share: all devices embed time and text."""


@pytest.fixture(scope="module")
def flux(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    return registry.load("flux", str(make_flux(tmp_path_factory.mktemp("cfg"))), "float32", {})


def first_step(
    flux: Pipeline, by: Layout, seeds: tuple[int, ...], **fields: Any
) -> tuple[Compiled, list[PyTree]]:
    """Compile and run the first step of one row per seed; return the program and the rows after
    it.
    """
    compiler = Compiler(placed(flux, by), by)
    options = {**flux.spec.defaults, **FIELDS, **fields, "num_inference_steps": 2}
    prepared = [flux.prepare({**options, "seed": seed}, {}) for seed in seeds]
    encode = compiler.tracer.encode(prepared[0].inputs).lower().compile()
    rows = tuple(encode(compiler.weights.common, dict(image.inputs)) for image in prepared)
    step = prepared[0].steps[0]
    batch_layout = compiler.batch_layouts([len(seeds)], elastic=False)[-1]
    program, _ = compiler.step(step.program, step.values, batch_layout, rows[0])
    values = {
        name: np.stack([np.float32(value)] * len(seeds)) for name, value in step.values.items()
    }
    modulations = compiler.modulations(step.program, step.values, rows[0])
    pairs = list(zip(rows, prepared, strict=True))
    extra = modulation_arguments(modulations, compiler.weights.common, pairs, 0)
    after, finite = program(compiler.weights.common, rows, values, *extra)
    assert finite.all()
    return program, list(after)


def work(program: Compiled) -> float:
    return float(program.cost_analysis()["flops"])


def test_without_guidance_its_devices_share_the_rows(flux: Pipeline) -> None:
    single, expected = first_step(flux, layout(), (3, 4))
    shared, rows = first_step(flux, layout(cfg=2), (3, 4))
    assert work(shared) <= EMBEDDED * work(single) / 2
    for output, reference in zip(rows, expected, strict=True):
        gap = np.abs(np.asarray(output["latents"]) - np.asarray(reference["latents"])).max()
        assert gap <= LATENTS * np.abs(np.asarray(reference["latents"])).max()


def test_the_passes_exchange_their_predictions_and_nothing_else(flux: Pipeline) -> None:
    """Two collectives of the latents' size: one exchanges the halves' predictions, one sums
    them.
    """
    program, (row,) = first_step(flux, layout(cfg=2), (3,), **GUIDED)
    sent = re.findall(
        r"= \(?f32\[([\d,]*)\][^=]*? (?:all-gather|all-reduce|collective-permute|all-to-all)"
        r"(?:-start)?\(",
        program.as_text(),
    )
    sizes = [np.prod([int(size) for size in shape.split(",") if size]) for shape in sent]
    assert 0 < len(sizes) <= 2 and max(sizes) <= row["latents"].size, sent
