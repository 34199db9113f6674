"""Measurement of one model: several rounds of requests, with the time of every stage."""

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
from deploy.bench.engine.case import EngineCase, LoadedCase, networks_of, opened
from deploy.bench.engine.matrix import matrix_rate
from deploy.bench.engine.memory import memory_of, weights_bytes
from deploy.bench.engine.result import AdapterTimes, Result
from deploy.bench.engine.timed import STAGES, Span, TimedEngine
from models.interface.pipeline import Fields, PreparedRow
from models.interface.step_program import StepProgram
from workers.engine.step_metrics import layout_name
from workers.pool.trials import Trials
from workers.programs import warmup
from workers.programs.batch_sizes import exact
from workers.programs.bucket_programs import BucketPrograms

MATRIX_REPEATS = 5


def measured(case: EngineCase) -> Result:
    """Measure the speed and memory of one model at one image size.

    Raises: as `deploy.bench.engine.case.opened`; GenerationFailed: a request failed.
    """
    started = time.perf_counter()
    model = opened(case)
    jax.block_until_ready(
        [leaf for leaf in jax.tree.leaves(model.pipeline.weights) if isinstance(leaf, jax.Array)]
    )
    return asyncio.run(_measured(case, model, time.perf_counter() - started))


async def _measured(case: EngineCase, model: LoadedCase, weights_s: float) -> Result:
    prepared = warmup.prepare(model.pipeline, model.fields)
    with TemporaryDirectory() as folder:
        adapters = None
        if case.lora_rank:
            adapters = RandomAdapters(
                model.pipeline, networks_of(prepared), case.lora_rank, case.dtype, Path(folder)
            )
        return await _by_engine(case, model, prepared, adapters, weights_s)


async def _by_engine(
    case: EngineCase,
    model: LoadedCase,
    prepared: PreparedRow,
    adapters: RandomAdapters | None,
    weights_s: float,
) -> Result:
    layout = model.slice.layout
    devices = list(layout.mesh.devices.flat)
    with_banks = weights_bytes(model.pipeline.weights)
    rows = exact(case.exact_rows or case.batch)
    files = adapters.find if adapters else None
    started = time.perf_counter()
    engine = TimedEngine(model.pipeline, layout, case.batch, rows, lora_files=files)
    kinds = [model.fields, *([adapters.with_adapters(model.fields, 0)] if adapters else [])]
    try:
        await engine.readiness.warm_up(kinds)
        await engine.readiness.larger_ready(kinds)
        compile_s = time.perf_counter() - started
        trials = Trials(engine, kinds, [0.0] * len(kinds))
        trials.timeout_s = None
        await trials.run_alone()
        await trials.run_batches()  # all step programs have been tried
        engine.taken()
        dtype = case.activation_dtype or case.dtype
        before = matrix_rate(devices, dtype, MATRIX_REPEATS)
        rounds, adapted = await _rounds(engine, case, model, adapters)
        after = matrix_rate(devices, dtype, MATRIX_REPEATS, side=before.side)
        programs = engine.programs.of(prepared)
        memory = memory_of(devices, model.pipeline.weights, _programs(programs))
        return Result(
            case=case,
            fields=model.fields,
            bucket=prepared.bucket,
            family=model.pipeline.spec.family,
            devices=len(devices),
            chip=devices[0].device_kind,
            layout=layout_name(layout),
            why=model.slice.chosen.why,
            is_tiled=model.is_tiled,
            steps=len(prepared.steps),
            work=sum(_flops(programs, step.program) for step in prepared.steps),
            seconds=_by_stage(rounds),
            matrix=(before, after),
            memory=memory,
            weights_s=weights_s,
            compile_s=compile_s,
            adapted=AdapterTimes(
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
    engine: TimedEngine, case: EngineCase, model: LoadedCase, adapters: RandomAdapters | None
) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    """Measure rounds of requests without and with adapters, alternately."""
    plain, adapted = [], []
    requests: list[Fields] = [{**model.fields, "seed": seed} for seed in range(case.batch)]
    for _ in range(case.repeats):
        plain.append(await _round(engine, model, requests))
        if adapters:
            adapted_requests = [
                adapters.with_adapters(fields, row) for row, fields in enumerate(requests)
            ]
            adapted.append(await _round(engine, model, adapted_requests))
    return plain, adapted


async def _round(
    engine: TimedEngine, model: LoadedCase, requests: Sequence[Fields]
) -> dict[str, float]:
    """Run a round of concurrent requests; return the seconds of each stage."""
    _, images = warmup.prepare_with_stand_ins(model.pipeline, model.fields)
    await asyncio.gather(*(engine.generate(fields, images) for fields in requests))
    return stage_seconds(engine.taken())


def _by_stage(rounds: Sequence[dict[str, float]]) -> dict[str, list[float]]:
    return {stage: [times[stage] for times in rounds] for stage in STAGES}


def stage_seconds(spans: Sequence[Span]) -> dict[str, float]:
    """Return seconds by stage of a round: the time while any request was in that stage.

    Requests that wait for a stage count as in it.
    """
    by_stage: defaultdict[str, list[Span]] = defaultdict(list)
    for span in spans:
        by_stage[span.stage].append(span)
    return {stage: covered(by_stage[stage]) for stage in STAGES}


def covered(spans: Sequence[Span]) -> float:
    """Return the seconds that the union of the spans covers."""
    total, until = 0.0, 0.0
    for span in sorted(spans, key=lambda item: item.begun_at):
        total += max(0.0, span.ended_at - max(span.begun_at, until))
        until = max(until, span.ended_at)
    return total


def _programs(programs: BucketPrograms) -> list[Any]:
    """Return the compiled programs that a benchmark's request runs."""
    steps = [
        program
        for step_kind in programs.step_kinds.values()
        for program in step_kind.programs.values()
    ]
    return [program.result() for program in (*programs.encoders.values(), *steps, programs.decode)]


def _flops(programs: BucketPrograms, step_program: StepProgram) -> float:
    counted: Future[float] | None = programs.step_kinds[step_program].flops
    assert counted is not None, "the engine counts a program's operations when it is first used"
    return counted.result()
