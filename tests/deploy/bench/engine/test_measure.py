"""`report` of the engine benchmark, measured on the smallest Flux."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from deploy.bench.engine.case import EngineCase
from deploy.bench.engine.measure import covered, stage_seconds
from deploy.bench.engine.table import figures, report, show
from deploy.bench.engine.timed import STAGES, Span
from tests.workers.flux import REQUEST
from workers.slice.devices import visible

BATCH, REPEATS = 2, 3
SIZE = {name: REQUEST[name] for name in ("width", "height", "num_inference_steps")}


def case(folder: Path, **changes: Any) -> EngineCase:
    chosen = {"batch": BATCH, "repeats": REPEATS, "dtype": "float32", "devices": range(1)}
    return EngineCase(str(folder), **{"request": SIZE, **chosen, **changes})


@pytest.fixture(scope="module", autouse=True)
def own_devices() -> Iterator[None]:
    """Undo changes of the device environment variables, which a measurement sets for its
    process."""
    with pytest.MonkeyPatch.context() as patch:
        for name in visible(range(1)):
            patch.setenv(name, "")
            patch.delenv(name)
        yield


@pytest.fixture(scope="module")
def bench_report(tiny: Path, coarse: None) -> Any:
    return json.loads(json.dumps(report(case(tiny))))


def test_report_has_every_stage_of_every_repeat(bench_report: Any) -> None:
    (result,) = bench_report["results"]
    seconds = result["seconds"]
    assert set(seconds) == {*STAGES, "step"}
    assert all(len(times) == REPEATS and min(times) > 0 for times in seconds.values())
    for whole_s, *parts in zip(*(seconds[name] for name in ("request", *STAGES[:3])), strict=True):
        assert max(parts) < whole_s, "a stage lasts longer than all of it"
    steps = SIZE["num_inference_steps"]
    assert result["steps"] == steps
    assert seconds["step"] == pytest.approx([time / steps for time in seconds["denoise"]])


def test_mfu_is_the_loops_work_over_the_measured_rate(bench_report: Any) -> None:
    (result,) = bench_report["results"]
    work = BATCH * result["step_flops"] / result["matrix_flops"]
    assert result["mfu"] == pytest.approx([work / step for step in result["seconds"]["step"]])
    assert min(result["mfu"]) > 0 and max(result["mfu"]) < 1
    before, after = result["matrix"]
    assert before["side"] == after["side"] and before["dtype"] == "float32"


def test_memory_has_the_weights_and_more(bench_report: Any) -> None:
    memory = bench_report["results"][0]["memory"]
    assert memory["by"] == "compiler", "a CPU's runtime counts nothing"
    assert 0 < memory["weights_bytes"] < memory["peak_bytes"]


def test_report_names_versions_machine_and_layout(bench_report: Any) -> None:
    assert {"jax", "flax"} <= bench_report["versions"].keys()
    assert bench_report["machine"]["cores"] > 0 and bench_report["machine"]["processor"]
    (result,) = bench_report["results"]
    assert (result["devices"], result["chip"], result["layout"]) == (1, "cpu", "one device")


def test_the_table_shows_it(bench_report: Any) -> None:
    console = Console(width=200, record=True)
    refused = {"model": "other", "tiny": False, "refused": "lacks 3 GiB [of 80]"}
    show({**bench_report, "results": [*bench_report["results"], refused]}, console)
    text = console.export_text()
    assert "lacks 3 GiB [of 80]" in text
    for name, value in figures(bench_report["results"][0]).items():
        assert name in text and value in text


def test_out_of_memory_is_reported_in_gib(tiny: Path) -> None:
    (result,) = report(case(tiny, batch=10**8))["results"]
    assert "GiB" in result["refused"]


def test_unsupported_size_is_reported(tiny: Path) -> None:
    for width in (
        33,
        10**6,
    ):  # the larger size must be refused before tracing, which would use all memory
        (result,) = report(case(tiny, request={"width": width}))["results"]
        assert "width" in result["refused"]


def test_rounds_alternate_with_and_without_adapters(tiny: Path, coarse: None) -> None:
    result_file = report(case(tiny, lora_rank=4))
    (result,) = result_file["results"]
    adapters = result["adapters"]
    times = adapters["seconds"]
    assert set(times) == {*STAGES, "step"} and all(
        len(samples) == REPEATS for samples in times.values()
    )
    pairs = zip(times["step"], result["seconds"]["step"], strict=True)
    assert adapters["of_plain"] == pytest.approx([loaded / plain for loaded, plain in pairs])
    assert adapters["rank"] == 4 and adapters["load_s"] > 0, "the engine has read a file"
    each_row = adapters["bank_bytes"] / BATCH
    assert each_row > adapters["file_bytes"], "a page has room for rank 16, the file has rank 4"
    console = Console(width=300, record=True)
    show(result_file, console)
    assert "rank 4: " in console.export_text()


def test_report_without_adapters_has_no_adapter_row(bench_report: Any) -> None:
    assert bench_report["results"][0]["adapters"] is None
    assert "a step with adapters" not in figures(bench_report["results"][0])


def test_stages_that_overlap_count_once() -> None:
    spans = [Span("encode", 0, 2), Span("encode", 1, 3), Span("encode", 5, 6)]
    assert covered(spans) == 4
    assert stage_seconds(spans) == {"encode": 4, "denoise": 0, "decode": 0, "request": 0}
