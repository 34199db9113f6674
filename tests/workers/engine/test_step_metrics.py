"""Metrics of an engine's steps: a bounded number of series, and the operations of each step."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from prometheus_client import REGISTRY

from models.interface.step_program import StepProgram
from models.parallel.axis_rules import Layout
from tests.workers.toy import DIM, SPEC, ToyPipeline
from workers import metrics
from workers.engine.batching import Batch
from workers.engine.engine import Engine
from workers.engine.row import Row
from workers.engine.step_metrics import MAX_SHAPES, StepMetrics, layout_name, rate, report_memory
from workers.programs.bucket_programs import BucketPrograms, StepKind
from workers.programs.compiler import Compiler
from workers.programs.step_latency import BatchLayout


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


def batch(step_kind: StepKind, bucket: str, rows: int, size: int) -> Batch:
    batch_row = Row(
        BucketPrograms(bucket), (), None, on_step=lambda row: None, on_end=lambda row, error: None
    )
    return Batch(step_kind, (batch_row,) * rows, BatchLayout(size))


def test_any_number_of_shapes_are_few_series(layout: Layout) -> None:
    meter = StepMetrics("many", lambda batch_layout: layout)
    for number in range(3 * MAX_SHAPES):
        meter.step(batch(StepKind(StepProgram("one")), f"{number}x8", 1, 1), 0.5)
    shapes = {
        sample.labels["shape"]: sample.value
        for family in metrics.step_seconds.collect()
        for sample in family.samples
        if sample.labels["model"] == "many" and sample.name.endswith("_count")
    }
    assert len(shapes) == MAX_SHAPES + 1
    assert shapes["0x8"] == 1 and shapes["other"] == 2 * MAX_SHAPES


def test_steps_and_known_operations_are_counted(layout: Layout) -> None:
    meter, step_kind = (
        StepMetrics("counted", lambda batch_layout: layout),
        StepKind(StepProgram("one")),
    )
    step_kind.flops = Future()
    meter.step(batch(step_kind, "8x8", 3, 4), 0.5)
    meter.waited(0.25)
    where = {"model": "counted", "shape": "8x8", "layout": "one device"}
    assert value("atelier_steps_total", **where) == 3
    assert value("atelier_padding_rows_total", model="counted") == 1
    assert value("atelier_device_step_seconds_total", model="counted") == 0.5
    assert value("atelier_device_wait_seconds_total", model="counted") == 0.25
    assert value("atelier_step_seconds_sum", **where, batch="4") == 0.5
    assert value("atelier_flops_total", model="counted") == 0
    step_kind.flops.set_result(100.0)
    meter.step(batch(step_kind, "8x8", 2, 2), 0.5)
    assert value("atelier_flops_total", model="counted") == 500


def test_uncountable_operations_are_ignored(layout: Layout) -> None:
    meter = StepMetrics("uncounted", lambda batch_layout: layout)
    for end in (lambda f: f.set_exception(ValueError("no")), lambda f: f.cancel()):
        step_kind = StepKind(StepProgram("one"))
        step_kind.flops = Future()
        end(step_kind.flops)
        meter.step(batch(step_kind, "8x8", 1, 1), 0.5)
    assert value("atelier_flops_total", model="uncounted") == 0


class Looped(ToyPipeline):
    """Toy pipeline whose step runs two matrix products in a loop of five rounds."""

    def step(
        self, program: Any, weights: Any, rows: Any, values: Any, modulations: Any = None
    ) -> Any:
        def body(latents: jax.Array, _: None) -> tuple[jax.Array, None]:
            return latents @ weights["in"] @ weights["back"], None

        latents, _ = jax.lax.scan(body, rows["latents"], None, length=5)
        return {**rows, "latents": latents}


def test_loop_bodies_are_counted_per_iteration(layout: Layout) -> None:
    """XLA's cost analysis counts a loop's body once, so it is not used."""
    pipeline = Looped()
    prepared = pipeline.prepare({"width": 32, "height": 16}, {})
    compiler = Compiler(pipeline, layout)
    row = compiler.tracer.encode(prepared.inputs).out_info
    values = prepared.steps[0].values
    tokens = row["latents"].shape[0]
    expected = 5 * 2 * (2 * tokens * DIM * DIM)
    assert compiler.flops(prepared.steps[0].program, values, row) == expected
    program: Any = compiler.step(prepared.steps[0].program, values, BatchLayout(1), row)[0]
    assert program.cost_analysis()["flops"] < expected / 2


async def test_engine_counts_images_and_stages(pipeline: ToyPipeline, layout: Layout) -> None:
    engine = Engine(pipeline, layout, slots=1)
    names = [
        f"atelier_job_stage_seconds_count/{stage}" for stage in ("encode", "denoise", "decode")
    ]

    def counts() -> list[float]:
        return [
            value(name.split("/")[0], model=SPEC.name, stage=name.split("/")[1]) for name in names
        ]

    try:
        before, flops = counts(), value("atelier_flops_total", model=SPEC.name)
        await engine.readiness.warm_up([{}])
        await engine.readiness.try_out({}, 2)
        assert counts() == before, "nobody asked for the warm-up's images"
        await engine.generate({"prompt": "a"}, {})
        assert counts() == [count + 1 for count in before]
        step_kind = next(iter(engine.programs.of(pipeline.prepare({}, {})).step_kinds.values()))
        assert step_kind.flops is not None and step_kind.flops.result(60) > 0
        await engine.generate({"prompt": "b"}, {})
        grown = value("atelier_flops_total", model=SPEC.name) - flops
        assert grown == pytest.approx(10 * step_kind.flops.result()), (
            "two, and two of four steps each"
        )
    finally:
        engine.close()


def a_device(kind: str, platform: str = "gpu", **stats: int) -> Any:
    return SimpleNamespace(
        id=3, device_kind=kind, platform=platform, memory_stats=lambda: stats or None
    )


def test_peak_flops_are_exported_for_known_chips() -> None:
    """Devices are simulated: the tests run without accelerators."""
    rate("h", [a_device("NVIDIA H200"), a_device("NVIDIA H200")])
    assert value("atelier_peak_flops", model="h") == 2 * 989e12
    rate("v", [a_device("TPU v6 lite", "tpu")])
    assert value("atelier_peak_flops", model="v") == 918e12
    for unknown in (a_device("NVIDIA L40"), a_device("cpu", "cpu")):
        rate("unknown", [unknown])
    assert REGISTRY.get_sample_value("atelier_peak_flops", {"model": "unknown"}) is None


def test_memory_is_exported_if_the_runtime_reports_it() -> None:
    stats = {"bytes_in_use": 5, "peak_bytes_in_use": 7, "bytes_limit": 9, "num_allocs": 1}
    report_memory([a_device("NVIDIA H200", **stats), *jax.local_devices()[:1]])
    values = {kind: value("atelier_device_memory_bytes", device="3", kind=kind) for kind in
            ("in_use", "peak", "limit")}  # fmt: skip
    assert values == {"in_use": 5, "peak": 7, "limit": 9}
    assert REGISTRY.get_sample_value(
        "atelier_device_memory_bytes", {"device": "0", "kind": "in_use"}
    ) is None  # fmt: skip


def test_layouts_are_named_by_their_axes(layout: Layout) -> None:
    assert layout_name(layout) == "one device"
    mesh = SimpleNamespace(shape={"data": 1, "cfg": 2, "ulysses": 4})
    assert layout_name(SimpleNamespace(mesh=mesh)) == "cfg=2,ulysses=4"


def test_profile_sets_the_communication_ratio() -> None:
    metrics.profiled("profiled", 0.25)
    assert value("atelier_communication_ratio", model="profiled") == 0.25


def test_compile_cache_hits_are_counted(compile_cache: None) -> None:
    def program(x: jax.Array) -> jax.Array:
        return x * 3.25 + 1.75

    before = {result: value("atelier_compile_cache_total", result=result) for result in
                ("hit", "miss")}  # fmt: skip
    jax.jit(program).lower(np.float32(1)).compile()
    jax.clear_caches()
    jax.jit(program).lower(np.float32(1)).compile()
    assert value("atelier_compile_cache_total", result="hit") > before["hit"]
