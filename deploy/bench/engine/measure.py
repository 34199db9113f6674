"""The measuring itself: one model, several whole requests, every stage of each."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax

from deploy.bench.engine.adapters import RandomAdapters
from deploy.bench.engine.ask import EngineCase, Opened, networks_of, opened
from deploy.bench.engine.matrix import matrix_rate
from deploy.bench.engine.memory import memory_of, weights_bytes
from deploy.bench.engine.result import Adapted, Result
from deploy.bench.engine.timed import STAGES, Span, TimedEngine
from models.interface.pipeline import Fields, Prepared
from models.interface.step_program import StepProgram
from workers.engine.step_metrics import layout_name
from workers.pool.measuring import Trials
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
    prepared = warmup.prepare(model.pipeline, model.fields)
    with TemporaryDirectory() as folder:
        adapters = None
        if ask.lora_rank:
            adapters = RandomAdapters(
                model.pipeline, networks_of(prepared), ask.lora_rank, ask.dtype, Path(folder)
            )
        return await _by_engine(ask, model, prepared, adapters, weights_s)


async def _by_engine(
    ask: EngineCase,
    model: Opened,
    prepared: Prepared,
    adapters: RandomAdapters | None,
    weights_s: float,
) -> Result:
    layout = model.slice.layout
    devices = list(layout.mesh.devices.flat)
    with_banks = weights_bytes(model.pipeline.weights)
    rows = exact(ask.exact_rows or ask.batch)
    files = adapters.find if adapters else None
    started = time.perf_counter()
    engine = TimedEngine(model.pipeline, layout, ask.batch, rows, lora_files=files)
    kinds = [model.fields, *([adapters.asked(model.fields, 0)] if adapters else [])]
    try:
        await engine.warm_up(kinds)
        await engine.larger_ready(kinds)
        compile_s = time.perf_counter() - started
        trials = Trials(engine, kinds, [0.0] * len(kinds))
        trials.held_s = None
        await trials.alone()
        await trials.batches()  # every way of stepping has been tried
        engine.taken()
        dtype = ask.activation_dtype or ask.dtype
        before = matrix_rate(devices, dtype, MATRIX_REPEATS)
        rounds, adapted = await _rounds(engine, ask, model, adapters)
        after = matrix_rate(devices, dtype, MATRIX_REPEATS, side=before.side)
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
            seconds=_by_stage(rounds),
            matrix=(before, after),
            memory=memory,
            weights_s=weights_s,
            compile_s=compile_s,
            adapted=Adapted(
                seconds=_by_stage(adapted),
                file_bytes=adapters.bytes,
                bank_bytes=with_banks - memory.weights_bytes,
                load_s=engine.adapters.load_s,
            )
            if adapters
            else None,
        )
    finally:
        engine.close()


async def _rounds(
    engine: TimedEngine, ask: EngineCase, model: Opened, adapters: RandomAdapters | None
) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    """Return the rounds without and with adapters, which take turns."""
    plain, adapted = [], []
    requests: list[Fields] = [{**model.fields, "seed": seed} for seed in range(ask.batch)]
    for _ in range(ask.repeats):
        plain.append(await _round(engine, model, requests))
        if adapters:
            asked = [adapters.asked(fields, row) for row, fields in enumerate(requests)]
            adapted.append(await _round(engine, model, asked))
    return plain, adapted


async def _round(
    engine: TimedEngine, model: Opened, requests: Sequence[Fields]
) -> dict[str, float]:
    """Run these requests at once; return seconds of each stage."""
    _, images = warmup.stood_in(model.pipeline, model.fields)
    await asyncio.gather(*(engine.generate(fields, images) for fields in requests))
    return stage_seconds(engine.taken())


def _by_stage(rounds: Sequence[dict[str, float]]) -> dict[str, list[float]]:
    return {stage: [times[stage] for times in rounds] for stage in STAGES}


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
