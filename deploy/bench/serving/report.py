"""Report of a load, as one value for JSON and tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from deploy.bench.machine import machine
from deploy.bench.serving.answer import UNFINISHED, Answer
from deploy.bench.serving.fairness import fairness
from deploy.bench.serving.load import Alone
from deploy.bench.serving.run import Run
from deploy.bench.serving.statistics import (
    deadlines,
    goodput,
    grouped,
    outcomes,
    reasons,
    refusals,
    spread,
    throughput,
    waits,
)
from deploy.exit_codes import UsageError


def report(run: Run, scales: Sequence[float], weights: Mapping[str, float]) -> dict[str, Any]:
    """Times in seconds; every percentile by the same definition (`statistics.percentile`).

    `client` is the machine that sent.
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
        "waits": {
            "all": waits(answers),
            "by_model": _waits_by(answers, lambda answer: answer.ask.model),
            "by_shape": _waits_by(answers, lambda answer: answer.ask.shape),
            "by_tenant": _waits_by(answers, lambda answer: answer.ask.tenant),
        },
        "goodput": goodput(answers, run.alone, scales),
        "deadlines": deadlines(answers),
        "fairness": fairness(answers, run.alone, weights, run.window_s),
    }


def _waits_by(answers: Sequence[Answer], by: Callable[[Answer], Hashable]) -> dict[str, Any]:
    return {str(name): waits(those) for name, those in grouped(answers, by).items()}


def _offered(run: Run) -> float | None:
    """Return the device-seconds asked for a second.

    Each request counts as it takes alone: 1 is all that one device which works on one image at a
    time can do.
    """
    known = [run.alone.get(answer.ask.shape) for answer in run.answers]
    seconds = [one.device_s for one in known if one is not None and one.device_s is not None]
    return sum(seconds) / run.window_s if known and len(seconds) == len(known) else None


def read_alone(path: Path) -> dict[str, Alone]:
    """Read what an earlier report measured of each shape alone. Raises: UsageError."""
    try:
        said = json.loads(path.read_text("utf-8"))["alone"]
        return {shape: Alone(**values) for shape, values in said.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{str(path)!r} is no report of `bench serve`: {error}") from None
