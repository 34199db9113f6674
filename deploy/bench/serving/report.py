"""Report of a load as JSON, the source of the tables, with the fairness between tenants."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from deploy.bench.machine import machine
from deploy.bench.serving.load import Alone
from deploy.bench.serving.request_outcome import SUCCEEDED, UNFINISHED, RequestOutcome
from deploy.bench.serving.run import Run
from deploy.bench.serving.statistics import (
    deadlines,
    goodput,
    grouped,
    outcomes,
    percentile,
    reasons,
    refusals,
    reuse,
    spread,
    throughput,
    waits,
)
from deploy.exit_codes import UsageError


def fairness(
    answers: Sequence[RequestOutcome],
    alone: Mapping[str, Alone],
    weights: Mapping[str, float],
    window_s: float,
) -> dict[str, Any]:
    """Return requested, received and due device-seconds by tenant, with slowdowns.

    A slowdown is a duration relative to that on the unloaded server. Requests count with their cost
    on the unloaded server, so a batch counts its work rather than its duration. `jain` is 1 if all
    received equal parts of their due, down to 1/n if one received everything.

    Source: Jain, Chiu and Hawe 1984.
    """
    rows = {
        tenant: _row(those, alone, window_s)
        for tenant, those in sorted(
            grouped(answers, lambda answer: answer.timed_request.tenant).items()
        )
    }
    requested = {tenant: row["asked_s"] for tenant, row in rows.items()}
    total = sum(row["got_s"] for row in rows.values())
    for tenant, due in dues(requested, weights, total).items():
        row = rows[tenant]
        row |= {"due_s": due, "got_of_due": row["got_s"] / due if due else None}
    parts = [row["got_of_due"] for row in rows.values() if row["got_of_due"] is not None]
    return {"tenants": rows, "jain": jain(parts)}


def _row(
    answers: Sequence[RequestOutcome], alone: Mapping[str, Alone], window_s: float
) -> dict[str, Any]:
    done = [answer for answer in answers if answer.outcome == SUCCEEDED]
    in_time = [a for a in done if a.ended_at_s is not None and a.ended_at_s <= window_s]
    slowdowns = [
        answer.whole_s / alone[answer.timed_request.shape].whole_s
        for answer in done
        if answer.timed_request.shape in alone and answer.whole_s is not None
    ]
    return {
        "asked": len(answers),
        "succeeded": len(done),
        "asked_s": sum(_work_s(answer, alone) for answer in answers),
        "got_s": sum(_work_s(answer, alone) for answer in in_time),
        "slowdown_p50": percentile(slowdowns, 50),
        "slowdown_p99": percentile(slowdowns, 99),
    }


def _work_s(answer: RequestOutcome, alone: Mapping[str, Alone]) -> float:
    """Return the unloaded cost of a request; if unmeasured, its job's device time or 0."""
    unloaded = alone.get(answer.timed_request.shape)
    if unloaded is None:
        return answer.device_s or 0.0
    return unloaded.whole_s if unloaded.device_s is None else unloaded.device_s


def dues(
    requested: Mapping[str, float], weights: Mapping[str, float], whole: float
) -> dict[str, float]:
    """Return the tenants' weighted max-min shares of the device time.

    No tenant gets more than it requested. The rest is divided among the others by weight.

    Source: Bertsekas and Gallager, Data Networks, 6.5.2.
    """
    shares: dict[str, float] = {}
    by_need = sorted(requested, key=lambda tenant: requested[tenant] / weights.get(tenant, 1.0))
    for number, tenant in enumerate(by_need):
        weight = weights.get(tenant, 1.0)
        among = sum(weights.get(other, 1.0) for other in by_need[number:])
        shares[tenant] = min(requested[tenant], max(0.0, whole) * weight / among)
        whole -= shares[tenant]
    return shares


def jain(values: Sequence[float]) -> float | None:
    """Compute Jain's index (Σx)² / (n Σx²); None if all values are zero or missing."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else None


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
