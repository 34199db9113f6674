"""The measuring itself: one model, several whole requests, every stage of each."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import jax

from deploy.bench.engine.ask import EngineCase, Opened, opened
from deploy.bench.engine.matrix import matrix_rate
from deploy.bench.engine.memory import memory_of
from deploy.bench.engine.result import Result
from deploy.bench.engine.timed import STAGES, Span, TimedEngine
from models.interface.step_program import StepProgram
from workers.engine.step_metrics import layout_name
from workers.pool.cost_reporting import measure as try_ways
from workers.programs import warmup
from workers.programs.batch_sizes import exact
from workers.programs.bucket_programs import BucketPrograms

MATRIX_REPEATS = 5


def measured(ask: EngineCase) -> Result:
    """Measure one model at one size.

    Raises: as `deploy.bench.engine.ask.opened`; GenerationFailed: a request could not be run.
    """
    started = time.perf_counter()
    model = opened(ask)
    jax.block_until_ready(
        [leaf for leaf in jax.tree.leaves(model.pipeline.weights) if isinstance(leaf, jax.Array)]
    )
    return asyncio.run(_measured(ask, model, time.perf_counter() - started))


async def _measured(ask: EngineCase, model: Opened, weights_s: float) -> Result:
    layout = model.slice.layout
    devices = list(layout.mesh.devices.flat)
    started = time.perf_counter()
    engine = TimedEngine(model.pipeline, layout, ask.batch, exact(ask.exact_rows or ask.batch))
    try:
        await engine.warm_up([model.fields])
        compile_s = time.perf_counter() - started
        await try_ways(engine, [model.fields])  # every way of stepping has its trials
        engine.taken()
        dtype = ask.activation_dtype or ask.dtype
        before = matrix_rate(devices, dtype, MATRIX_REPEATS)
        rounds = [await _round(engine, ask, model) for _ in range(ask.repeats)]
        after = matrix_rate(devices, dtype, MATRIX_REPEATS, side=before.side)
        prepared = warmup.prepare(model.pipeline, model.fields)
        programs = engine.programs.of(prepared)
        memory = memory_of(devices, model.pipeline.weights, _programs(programs))
        return Result(
            ask=ask,
            fields=model.fields,
            bucket=prepared.bucket,
            family=model.pipeline.spec.family,
            devices=len(devices),
            chip=devices[0].device_kind,
            layout=layout_name(layout),
            why=model.slice.chosen.why,
            is_tiled=model.is_tiled,
            steps=len(prepared.steps),
            work=sum(_flops(programs, step.phase) for step in prepared.steps),
            seconds={stage: [times[stage] for times in rounds] for stage in STAGES},
            matrix=(before, after),
            memory=memory,
            weights_s=weights_s,
            compile_s=compile_s,
        )
    finally:
        engine.close()


async def _round(engine: TimedEngine, ask: EngineCase, model: Opened) -> dict[str, float]:
    """Run as many requests as the batch has, at once; return seconds of each stage."""
    requests = [{**model.fields, "seed": seed} for seed in range(ask.batch)]
    _, images = warmup.stood_in(model.pipeline, model.fields)
    await asyncio.gather(*(engine.generate(fields, images) for fields in requests))
    return stage_seconds(engine.taken())


def stage_seconds(spans: Sequence[Span]) -> dict[str, float]:
    """Return seconds by stage of a round: while at least one request was in that stage.

    Requests that wait for their turn in a stage are in it.
    """
    by_stage: defaultdict[str, list[Span]] = defaultdict(list)
    for span in spans:
        by_stage[span.stage].append(span)
    return {stage: covered(by_stage[stage]) for stage in STAGES}


def covered(spans: Sequence[Span]) -> float:
    """Seconds that any of them covers."""
    total, until = 0.0, 0.0
    for span in sorted(spans, key=lambda one: one.begun_at):
        total += max(0.0, span.ended_at - max(span.begun_at, until))
        until = max(until, span.ended_at)
    return total


def _programs(programs: BucketPrograms) -> list[Any]:
    """Return the compiled programs that a request runs."""
    steps = [program for phase in programs.phases.values() for program in phase.programs.values()]
    return [program.result() for program in (*programs.encoders.values(), *steps, programs.decode)]


def _flops(programs: BucketPrograms, phase: StepProgram) -> float:
    counted: Future[float] | None = programs.phases[phase].flops
    assert counted is not None, "the engine counts a program's operations when it is first used"
    return counted.result()
