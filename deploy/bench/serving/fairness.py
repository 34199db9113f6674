"""Fairness between tenants while they asked: what each got, against its due."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deploy.bench.serving.answer import SUCCEEDED, Answer
from deploy.bench.serving.load import Alone
from deploy.bench.serving.statistics import grouped, percentile


def fairness(
    answers: Sequence[Answer],
    alone: Mapping[str, Alone],
    weights: Mapping[str, float],
    window_s: float,
) -> dict[str, Any]:
    """Return by tenant, in device-seconds: asked for, got while requests came, and due.

    And how many times as long as alone its requests took. Requests count as they take alone, so
    that a batch counts for the work that is done, not for the company.

    `jain`: 1, all got the same part of their due, to 1/n, one got everything.
    Source: Jain, Chiu and Hawe 1984.
    """
    rows = {
        tenant: _row(those, alone, window_s)
        for tenant, those in sorted(grouped(answers, lambda one: one.ask.tenant).items())
    }
    asked = {tenant: row["asked_s"] for tenant, row in rows.items()}
    whole = sum(row["got_s"] for row in rows.values())
    for tenant, due in dues(asked, weights, whole).items():
        row = rows[tenant]
        row |= {"due_s": due, "got_of_due": row["got_s"] / due if due else None}
    parts = [row["got_of_due"] for row in rows.values() if row["got_of_due"] is not None]
    return {"tenants": rows, "jain": jain(parts)}


def _row(answers: Sequence[Answer], alone: Mapping[str, Alone], window_s: float) -> dict[str, Any]:
    done = [answer for answer in answers if answer.outcome == SUCCEEDED]
    in_time = [a for a in done if a.ended_at_s is not None and a.ended_at_s <= window_s]
    slowdowns = [
        answer.whole_s / alone[answer.ask.shape].whole_s
        for answer in done
        if answer.ask.shape in alone and answer.whole_s is not None
    ]
    return {
        "asked": len(answers),
        "succeeded": len(done),
        "asked_s": sum(_work_s(answer, alone) for answer in answers),
        "got_s": sum(_work_s(answer, alone) for answer in in_time),
        "slowdown_p50": percentile(slowdowns, 50),
        "slowdown_p99": percentile(slowdowns, 99),
    }


def _work_s(answer: Answer, alone: Mapping[str, Alone]) -> float:
    """Return the seconds it takes alone; where not measured, what its job says, or 0."""
    known = alone.get(answer.ask.shape)
    if known is None:
        return answer.device_s or 0.0
    return known.whole_s if known.device_s is None else known.device_s


def dues(
    asked: Mapping[str, float], weights: Mapping[str, float], whole: float
) -> dict[str, float]:
    """Return weighted max-min shares.

    Nobody gets more than it asks for, and what it leaves goes to the others by their weights.
    Source: Bertsekas and Gallager, Data Networks, 6.5.2.
    """
    found: dict[str, float] = {}
    by_need = sorted(asked, key=lambda tenant: asked[tenant] / weights.get(tenant, 1.0))
    for number, tenant in enumerate(by_need):
        weight = weights.get(tenant, 1.0)
        among = sum(weights.get(other, 1.0) for other in by_need[number:])
        found[tenant] = min(asked[tenant], max(0.0, whole) * weight / among)
        whole -= found[tenant]
    return found


def jain(values: Sequence[float]) -> float | None:
    """(Σx)² / (n Σx²); None of nothing."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else None
