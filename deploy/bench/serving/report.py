"""Report of a load as JSON, the source of the tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from deploy.bench.machine import machine
from deploy.bench.serving.fairness import fairness
from deploy.bench.serving.load import Alone
from deploy.bench.serving.request_outcome import UNFINISHED, RequestOutcome
from deploy.bench.serving.run import Run
from deploy.bench.serving.statistics import (
    deadlines,
    goodput,
    grouped,
    outcomes,
    reasons,
    refusals,
    reuse,
    spread,
    throughput,
    waits,
)
from deploy.exit_codes import UsageError


def report(run: Run, scales: Sequence[float], weights: Mapping[str, float]) -> dict[str, Any]:
    """Return the report of a load benchmark. Times are in seconds.

    All percentiles have the same definition (`statistics.percentile`). `client` is the sending
    machine.
    """
    answers = run.answers
    return {
        "server": run.server,
        "client": machine(),
        "began_at": run.began_at,
        "planned": run.planned,
        "sent": len(answers),
        "interrupted": run.interrupted,
        "unfinished": sum(answer.outcome == UNFINISHED for answer in answers),
        "sender": {
            "late_s": spread(answer.late_s for answer in answers),
            "lost_connections": run.lost_connections,
            "followed_late": run.followed_late,
        },
        "alone": {shape: asdict(alone) for shape, alone in run.alone.items()},
        "throughput": throughput(answers, run.window_s),
        "offered_device_s_per_s": _offered(run),
        "outcomes": outcomes(answers),
        "reasons": reasons(answers),
        "refusals": refusals(answers),
        "reuse": reuse(answers),
        "waits": {
            "all": waits(answers),
            "by_model": _waits_by(answers, lambda answer: answer.timed_request.model),
            "by_shape": _waits_by(answers, lambda answer: answer.timed_request.shape),
            "by_tenant": _waits_by(answers, lambda answer: answer.timed_request.tenant),
        },
        "goodput": goodput(answers, run.alone, scales),
        "deadlines": deadlines(answers),
        "fairness": fairness(answers, run.alone, weights, run.window_s),
    }


def _waits_by(
    answers: Sequence[RequestOutcome], by: Callable[[RequestOutcome], Hashable]
) -> dict[str, Any]:
    return {str(name): waits(those) for name, those in grouped(answers, by).items()}


def _offered(run: Run) -> float | None:
    """Return the load that was requested: device-seconds per second.

    Requests count with their cost on the unloaded server. 1 is the capacity of a device that works
    on one image at a time.
    """
    unloaded = [run.alone.get(answer.timed_request.shape) for answer in run.answers]
    seconds = [
        times.device_s for times in unloaded if times is not None and times.device_s is not None
    ]
    return sum(seconds) / run.window_s if unloaded and len(seconds) == len(unloaded) else None


def read_alone(path: Path) -> dict[str, Alone]:
    """Read the unloaded times of an earlier load report. Raises: UsageError."""
    try:
        sections = json.loads(path.read_text("utf-8"))["alone"]
        return {shape: Alone(**values) for shape, values in sections.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{str(path)!r} is not a report of `bench serve`: {error}") from None
