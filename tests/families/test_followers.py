"""Tracing of steps from their keys, by a process that never prepared a request, like a follower."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from models.interface.pipeline import Pipeline, PreparedRow
from models.interface.step_program import StepProgram
from models.loading.sources import SHAPES
from models.sampling.registry import SOLVERS
from service.settings.models import ModelSettings
from service.settings.pools import PoolSettings
from tests.families.suite import EVERY, settings_of
from tests.families.suite.entry import SuiteEntry
from tests.parity.tiny_wan import make_wan
from workers.jaxpr.logical_mesh import logical_layout
from workers.loading.model import read, rounding_of
from workers.multihost.handshake import outline, outlined
from workers.programs.compiler import signature
from workers.programs.tracer import Tracer

DEMO = Path(__file__).parents[2] / "models" / "demo"
FEW = {"prompt": "a red circle", "seed": 1, "num_inference_steps": 5}
FieldSets = Sequence[dict[str, Any]]
"""Fields of requests."""
THRESHOLDING: dict[str, Any] = {"thresholding": True, "sample_max_value": 2.5}
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "ddim": [{}, {"eta": 0.7}, THRESHOLDING],
    "dpmpp_2m": [{}, {"solver_order": 3}],
    "unipc": [{}, {"solver_order": 1}],
    "pndm": [{"rescale_betas_zero_snr": False}],
    "lcm": [{"original_inference_steps": 50}],
}
"""Options that change a scheduler's arithmetic, by scheduler."""


def abstract(source: Path, entry: SuiteEntry) -> Pipeline:
    """Return a pipeline of that checkpoint without weights, which has prepared nothing."""
    model = ModelSettings(
        source=str(source), dtype="float32", eight_bit="beside", **settings_of(entry, source)
    )
    return read(
        PoolSettings(model="m"),
        model,
        reader=SHAPES,
        sharding=logical_layout().of_parameter,
        rounding=rounding_of(model),
        swap_experts=False,
    )


def requests(
    pipeline: Pipeline, entry: SuiteEntry, field_sets: FieldSets
) -> Iterator[dict[str, Any]]:
    """Yield a default request without guidance, one with each choice, and a weighted prompt."""
    for guidance, more in [(entry.unguided, {}), *product([entry.guided], field_sets)]:
        yield {**pipeline.spec.defaults, **FEW, **entry.image_fields, **guidance, **more}
    weighted = {"prompt_syntax": "weighted", "prompt": "a (red:1.2) circle BREAK [star]"}
    yield {**pipeline.spec.defaults, **FEW, **entry.image_fields, **entry.unguided, **weighted}


def with_schedulers(pipeline: Pipeline) -> FieldSets:
    """Return a request's fields for each scheduler, and for each of its options."""
    return [
        {"scheduler": {"name": name, **options}}
        for name, accepted in pipeline.spec.schedulers.items()
        if name.islower()
        for options in OPTIONS.get(name, [{}])
        if options.keys() <= accepted.keys()
    ]


def with_presets(pipeline: Pipeline) -> FieldSets:
    """Return a request's fields for each preset."""
    return [{"quality": name} for name in pipeline.spec.quality_names]


def source_of(name: str, folder: Path) -> Path:
    """Return the demo's checkpoint, or write the smallest. "experts" is Wan with two experts."""
    if name == "experts":
        layer = {"num_layers": 1}
        return make_wan(folder, transformer=layer, transformer_2=layer, boundary_ratio=0.875)
    return DEMO / name if (DEMO / name).is_dir() else EVERY[name].least(folder)


def steps_traced(
    name: str, folder: Path, field_sets_of: Callable[[Pipeline], FieldSets]
) -> tuple[set[StepProgram], Pipeline]:
    """Trace the steps of requests that another pipeline has prepared.

    Return their keys, and that pipeline.
    """
    source, entry = source_of(name, folder / name), entry_of(name)
    first, fresh = abstract(source, entry), Tracer(abstract(source, entry), logical_layout())
    rows: dict[Hashable, Any] = {}
    traced: set[Hashable] = set()
    programs: set[StepProgram] = set()
    for fields in requests(first, entry, field_sets_of(first)):
        message = json.loads(json.dumps(outline(first.prepare(fields, entry.images))))
        programs |= trace(fresh, outlined(message), rows, traced)
    return programs, first


def entry_of(name: str) -> SuiteEntry:
    return EVERY["wan" if name == "experts" else name]


@pytest.mark.parametrize("name", [*EVERY, "experts"])
def test_a_fresh_pipeline_traces_any_step_from_its_key(name: str, tmp_path: Path) -> None:
    programs, first = steps_traced(name, tmp_path, with_presets)
    entry = entry_of(name)
    assert {program.guided for program in programs} == {bool(entry.guided), False}
    assert {program.quant for program in programs} == {None, "w8a8", "w8a16"}
    caches = {None, "first-block", "teacache"} if entry.step_caches else {None}
    calibrated = {"planned"} & {preset.cache for preset in first.spec.qualities.values()}
    assert {program.cache for program in programs} == caches | calibrated
    networks = {"transformer", "transformer_2"} if name == "experts" else {*entry.components}
    assert {program.network for program in programs} == networks


@pytest.mark.parametrize("name", [*EVERY, "experts"])
def test_a_fresh_pipeline_traces_the_steps_of_each_scheduler(name: str, tmp_path: Path) -> None:
    programs, first = steps_traced(name, tmp_path, with_schedulers)
    methods = {type(program.solver) for program in programs}
    if first.spec.family == "sdxl":
        assert methods == {solver for solver in SOLVERS if solver.METHOD != "flow_match_euler"}
    elif first.spec.schedulers:
        flow = {"dpm", "flow_match_euler", "two_stage"}
        by_name = {"unipc"} if first.spec.family == "wan" else set()
        assert {solver.METHOD for solver in methods} == flow | by_name


def trace(
    tracer: Tracer, prepared: PreparedRow, rows: dict[Hashable, Any], traced: set[Hashable]
) -> set[StepProgram]:
    """Trace the steps of a request that were not traced yet. Return all its keys.

    Args:
        rows: Rows by the signature of their inputs.
        traced: Traced steps, by their keys and the signatures of their arguments.
    """
    kind = signature(prepared.inputs)
    if kind not in rows:
        rows[kind] = tracer.encode(prepared.inputs).out_info
    steps = {step.program: step for step in prepared.steps}
    for step in steps.values():
        key = (step.program, signature(step.values), kind)
        if key not in traced:
            tracer.step(step.program, step.values, rows[kind])
            traced.add(key)
    return set(steps)
