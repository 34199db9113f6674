"""Benchmark report as JSON, and its text table, which also shows reports of earlier runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table

from deploy.bench.engine.case import EngineCase
from deploy.bench.engine.measure import measured
from deploy.bench.engine.result import Spread
from deploy.bench.machine import flags, machine, versions
from models.spec.request import RequestError
from workers.engine.errors import GenerationFailed
from workers.loading.model import NotEnoughMemory

Json = Mapping[str, Any]
QUARTILES = "medians, and the quartiles of all repeats; minimum and maximum if fewer than four"


def show(report: Json, console: Console) -> None:
    """Print engine benchmark results as a table with a column per model, followed by notes."""
    results = [item for item in report["results"] if "refused" not in item]
    if results:
        columns = [figures(result) for result in results]
        table = Table("", *(named(result) for result in results))
        for name in columns[0]:
            table.add_row(name, *(column.get(name, "") for column in columns))
        console.print(table)
        console.print(QUARTILES, highlight=False)
    for item in report["results"]:
        if "refused" in item:
            console.print(f"{item['model']}: {item['refused']}", style="red", markup=False)
    for line in notes(report, results):
        console.print(line, markup=False, highlight=False)


def named(result: Json) -> str:
    """Return a benchmark result's model name, for tables."""
    return str(result["model"]) + (" (tiny)" if result["tiny"] else "")


def figures(result: Json) -> dict[str, str]:
    """Return the table cells of a benchmark result, by row name."""
    seconds, memory = result["seconds"], result["memory"]
    return {
        "request": f"{result['bucket']}, {result['steps']} steps",
        "batch": f"{rows(result)}, {numbers(result)}",
        "devices": f"{result['devices']} x {result['chip']}, {result['layout']}",
        "a step": spread(seconds["step"]),
        **adapted(result.get("adapters")),
        "encoding": spread(seconds["encode"]),
        "decoding": spread(seconds["decode"]) + (" in tiles" if result["vae_tiling"] else ""),
        "whole request": spread(seconds["request"]),
        "encoding and decoding": f"{Spread.of(result['around']).median:.1%} of the request",
        "MFU of the loop": f"{Spread.of(result['mfu']).median:.1%}",
        "work of a step": f"{result['step_flops'] / 1e12:.3g} TFLOP an image",
        "memory": f"{memory['peak_bytes'] / 2**30:.2f} GiB, by the {memory['by']}",
        "of it weights": f"{memory['weights_bytes'] / 2**30:.2f} GiB",
    }


def adapted(result: Json | None) -> dict[str, str]:
    """Return the table row of a step with adapters, if measured: its time and ratio."""
    if result is None:
        return {}
    ratio = Spread.of(result["of_plain"])
    times = f"{ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f}) of a step without"
    step = f"rank {result['rank']}: {spread(result['seconds']['step'])}, {times}"
    return {"a step with adapters": step}


def rows(result: Json) -> str:
    """Format a benchmark's number of requests, and the program's rows if different."""
    same = result["batch"] == result["exact_rows"]
    return str(result["batch"]) + ("" if same else f" by {result['exact_rows']}")


def numbers(result: Json) -> str:
    """Format the data types of weights and, if different, of activations."""
    weights, activations = result["dtype"], result["activation_dtype"]
    text = weights if weights == activations else f"{weights}, activations {activations}"
    return text + (f", blocks by {result['eight_bit']}" if result["eight_bit"] else "")


def spread(values: Sequence[float]) -> str:
    """Format a benchmark's median with its quartiles."""
    statistics = Spread.of(values)
    return f"{shown(statistics.median)} ({shown(statistics.low)} to {shown(statistics.high)})"


def shown(seconds: float) -> str:
    """Format a duration in a suitable unit."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"


def _of_adapters(result: Json) -> str:
    return (
        f"a row's adapters of {result['file_bytes'] / 1e6:.3g} MB were loaded after"
        f" {shown(result['load_s'])}; the banks have {result['bank_bytes'] / 1e6:.3g} MB a device"
    )


def notes(report: Json, results: Sequence[Json]) -> Iterator[str]:
    """Yield the notes below a table of engine benchmark results."""
    for result in results:
        rate = result["matrix"][0]
        yield (
            f"{named(result)}: MFU is of {result['matrix_flops'] / 1e12:.3g} TFLOP/s, measured in"
            f" this run: {rate['side']} x {rate['side']} in {rate['dtype']} on"
            f" {rate['devices']} device(s)"
        )
        if result.get("adapters"):
            yield f"{named(result)}: {_of_adapters(result['adapters'])}"
    machine = report["machine"]
    yield f"{machine['processor']}, {machine['cores']} cores; load {machine['load']:.1f}"
    yield ", ".join(f"{name} {number}" for name, number in report["versions"].items())
    for name, value in report["flags"].items():
        yield f"{name}={value}"


def report(case: EngineCase) -> dict[str, Any]:
    """Measure one model; an error of memory or of the request becomes the result.

    Raises: CheckpointError, ConfigError: the model or the layout is invalid.
    """
    try:
        result = measured(case).as_json()
    except (NotEnoughMemory, RequestError, GenerationFailed) as error:
        result = {"model": case.model, "tiny": case.tiny, "refused": str(error)}
    return document([result])


def document(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the results with the machine and the versions."""
    return {
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(),
        "flags": flags(),
        "results": [*results],
    }
