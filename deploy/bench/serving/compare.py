"""Comparison of two backends by alternating turns: the same requests, sent to a worker of each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from deploy.bench.machine import flags, machine, versions
from deploy.bench.serving.load import NotMeasured, send
from deploy.bench.serving.request_outcome import SUCCEEDED, RequestOutcome
from deploy.bench.serving.server import Server
from deploy.bench.serving.table import FILE_WIDTH, seconds
from deploy.bench.serving.timed_request import TimedRequest

Json = dict[str, Any]
NATIVE, DIFFUSERS = "native", "diffusers"
STAGES = {
    "device": "device-seconds of a request that has the worker alone",
    "request": "seconds from sending such a request to its files",
    "trace": "seconds from the first request of the trace to the last files",
}
"""Figures of a turn, with their meanings."""
SAME_WORK = (
    *("width", "height", "num_frames", "num_inference_steps", "max_sequence_length"),
    *("guidance_scale", "true_cfg_scale"),
)
"""Request fields whose defaults may differ between the backends."""
CONNECTIONS = 64
PROMPT = "a red circle on a blue background"


@dataclass(frozen=True)
class Comparison:
    """Results of a benchmark that compares two backends in alternating turns, in order."""

    model: str
    native: Sequence[Json]
    diffusers: Sequence[Json]

    def as_json(self) -> Json:
        """Return every measured time, with the machine and the versions."""
        return {
            "model": self.model,
            "ratios": {stage: self._ratios(stage) for stage in STAGES},
            "machine": machine(),
            "versions": versions(),
            "flags": flags(),
            NATIVE: list(self.native),
            DIFFUSERS: list(self.diffusers),
        }

    def _ratios(self, stage: str) -> list[float]:
        return ratios(*([turn[stage] for turn in side] for side in (self.native, self.diffusers)))


def ratios(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> list[float]:
    """Return the other backend's median time divided by the native one's, for each turn."""
    return [median(b) / median(a) for a, b in zip(ours, theirs, strict=False)]


def spread(values: Sequence[float]) -> str:
    """Format a median time with its range."""
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def compared(model: str, turn: Callable[[str], Json], turns: int) -> Comparison:
    """Run turns of the native and the diffusers backend alternately, the native one first.

    Args:
        turn: runs a turn of one backend.

    Raises: NotMeasured: a turn failed, or the backends ran different steps.
    """
    native: list[Json] = []
    diffusers: list[Json] = []
    for _ in range(turns):
        native.append(turn(NATIVE))
        diffusers.append(turn(DIFFUSERS))
        steps = native[0]["steps"], diffusers[-1]["steps"]
        if steps[0] != steps[1]:
            raise NotMeasured(f"the native worker ran {steps[0]} steps, and diffusers {steps[1]}")
    return Comparison(model, native, diffusers)


def default_trace(
    model: str, count: int, fields: Mapping[str, Any], listed: Mapping[str, Any]
) -> list[TimedRequest]:
    """Return the default requests of a comparison: sent at once, with different prompts and seeds.

    Args:
        fields: of every request.
        listed: the native model in `GET /v1/models`, whose defaults hold for both backends.
    """
    defaults = {name: listed["defaults"].get(name) for name in SAME_WORK}
    common = {name: value for name, value in defaults.items() if value is not None}
    return [
        TimedRequest(
            at_s=0,
            request={
                **common,
                **fields,
                "model": model,
                "prompt": f"{number}: {PROMPT}",  # encoders may cut the end off
                "seed": number,
            },
        )
        for number in range(count)
    ]


async def measured_turn(
    server: Server, trace: Sequence[TimedRequest], patience_s: float
) -> dict[str, Any]:
    """Send a trace's requests one by one, then the trace; return the times by stage.

    The first request of each shape is sent once more before, because it may compile.

    Raises: NotMeasured: a request failed.
    """
    first = {request.shape: request for request in reversed(trace)}
    alone: list[RequestOutcome] = []
    for request in first.values():
        await _sent(server, [_renamed(request, "first")], patience_s)
    for request in trace:
        alone += await _sent(server, [_renamed(request, "alone")], patience_s)
    loaded = await _sent(server, trace, patience_s)
    return {
        "device": [outcome.device_s for outcome in alone],
        "request": [outcome.whole_s for outcome in alone],
        "trace": [max(outcome.ended_at_s or 0.0 for outcome in loaded)],
        "steps": sum(outcome.steps for outcome in loaded),
        "requests": [request.request for request in trace],
    }


def _renamed(request: TimedRequest, word: str) -> TimedRequest:
    """Return a request that is sent at once, with a prompt that no cache has."""
    prompt = f"{word} {request.request.get('prompt', '')}"
    return request.model_copy(
        update={"at_s": 0.0, "request": {**request.request, "prompt": prompt}}
    )


async def _sent(
    server: Server, requests: Sequence[TimedRequest], patience_s: float
) -> list[RequestOutcome]:
    outcomes = await send(server, requests, {}, asyncio.Event(), patience_s)
    for outcome in outcomes:
        if outcome.outcome != SUCCEEDED:
            why = ": ".join(filter(None, (outcome.reason, outcome.detail))) or "no reason given"
            raise NotMeasured(f"{outcome.timed_request.shape}: {outcome.outcome}, {why}")
    return outcomes


def show(report: Mapping[str, Any], console: Console) -> None:
    """Print the medians of all turns, the ratios, and the machine."""
    if not console.is_terminal:
        console.width = FILE_WIDTH
    columns = ("native", "diffusers", "diffusers / native (of all turns)")
    table = Table("", *columns, title=str(report["model"]))
    for stage in STAGES:
        sides = (every(report[side], stage) for side in (NATIVE, DIFFUSERS))
        table.add_row(stage, *(_range(times) for times in sides), spread(report["ratios"][stage]))
    console.print(table)
    for line in notes(report):
        console.print(line, markup=False, highlight=False)


def every(turns: Sequence[Mapping[str, Any]], stage: str) -> list[float]:
    """Return the requests' times of one stage in all turns of a backend."""
    return [time for turn in turns for time in turn[stage]]


def _range(times: Sequence[float]) -> str:
    return f"{seconds(median(times))} ({seconds(min(times))} to {seconds(max(times))})"


def notes(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield notes on a comparison: stages, amount of work, machine and versions."""
    for stage, meaning in STAGES.items():
        yield f"{stage}: {meaning}"
    turns, made_on = report[NATIVE], report["machine"]
    requests, steps = len(turns[0]["requests"]), turns[0]["steps"]
    yield f"{len(turns)} turns each; a trace of {requests} requests with {steps} steps in all"
    yield (
        f"{made_on['processor']}, {made_on['cores']} cores; load {made_on['load']:.1f} at the end"
    )
    yield ", ".join(f"{name} {number}" for name, number in report["versions"].items())
