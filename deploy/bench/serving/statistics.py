"""Statistics of a load's answers. Pure: answers in, numbers out."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from deploy.bench.serving.answer import REFUSED, SUCCEEDED, Answer
from deploy.bench.serving.load import Alone

PERCENTS = (50, 90, 99)
TIMES = ("accept_s", "queue_s", "run_s", "device_s", "outside_s", "fetch_s", "whole_s")
"""Times of an answer that are reported as percentiles."""

Key = TypeVar("Key", bound=Hashable)


def percentile(values: Iterable[float], percent: float) -> float | None:
    """Interpolate between the two nearest values, by their distance; None without values.

    Source: Hyndman and Fan 1996, definition 7 (NumPy's default).
    """
    ordered = sorted(values)
    if not ordered:
        return None
    place = percent / 100 * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def spread(values: Iterable[float | None]) -> dict[str, float | None]:
    """p50, p90, p99 and the largest, of those that are known."""
    known = [value for value in values if value is not None]
    found = {f"p{percent}": percentile(known, percent) for percent in PERCENTS}
    return found | {"max": max(known, default=None)}


def grouped(answers: Iterable[Answer], by: Callable[[Answer], Key]) -> dict[Key, list[Answer]]:
    """Return answers by a property of theirs."""
    groups: defaultdict[Key, list[Answer]] = defaultdict(list)
    for answer in answers:
        groups[by(answer)].append(answer)
    return dict(groups)


def waits(answers: Sequence[Answer]) -> dict[str, Any]:
    """Summarise where the time of successful requests went."""
    done = [answer for answer in answers if answer.outcome == SUCCEEDED]
    times = {name: spread(getattr(answer, name) for answer in done) for name in TIMES}
    return {"asked": len(answers), "succeeded": len(done), **times}


def refusals(answers: Iterable[Answer]) -> list[dict[str, Any]]:
    """Count refusals by status and reason, the most frequent first."""
    refused = [answer for answer in answers if answer.outcome == REFUSED]
    groups = grouped(refused, lambda answer: (answer.status, answer.reason))
    rows = [
        {
            "status": status,
            "reason": reason,
            "count": len(those),
            "retry_after_s": spread(answer.retry_after_s for answer in those),
        }
        for (status, reason), those in groups.items()
    ]
    return sorted(rows, key=lambda row: -row["count"])


def outcomes(answers: Iterable[Answer]) -> dict[str, int]:
    """Return the number of answers by outcome, the most frequent first."""
    return dict(Counter(answer.outcome for answer in answers).most_common())


def reasons(answers: Iterable[Answer]) -> dict[str, int]:
    """Count the reasons of what was neither refused nor succeeded."""
    reported = (f"{a.outcome}: {a.reason}" for a in answers if a.reason and a.outcome != REFUSED)
    return dict(Counter(reported).most_common())


def goodput(
    answers: Sequence[Answer], alone: Mapping[str, Alone], scales: Iterable[float]
) -> list[dict[str, float]]:
    """Return, at each scale, the share of requests done within that many times their time alone.

    What was refused or failed was not. None where nothing was measured alone.
    """
    known = [answer for answer in answers if answer.ask.shape in alone]
    if not known:
        return []
    rows = []
    for scale in scales:
        met = sum(answer.met(scale * alone[answer.ask.shape].whole_s) for answer in known)
        rows.append({"scale": scale, "asked": len(known), "met": met, "share": part(met, known)})
    return rows


def deadlines(answers: Iterable[Answer]) -> list[dict[str, Any]]:
    """Count the deadlines met, of requests that sent one, by scale (None: seconds)."""
    with_deadline = [answer for answer in answers if answer.deadline_s is not None]
    groups = grouped(with_deadline, lambda answer: answer.ask.deadline_scale)
    rows = []
    for scale, those in sorted(groups.items(), key=lambda group: group[0] or 0.0):
        met = sum(answer.met(answer.deadline_s or 0.0) for answer in those)
        row = {"scale": scale, "asked": len(those), "met": met, "share": part(met, those)}
        rows.append(row | {"outcomes": outcomes(those)})
    return rows


def throughput(answers: Sequence[Answer], window_s: float) -> dict[str, float | None]:
    """A second, of what was done while requests came; device-seconds only where all jobs tell."""
    done = [a for a in answers if a.outcome == SUCCEEDED and _within(a, window_s)]
    device = [answer.device_s for answer in done]
    known = [seconds for seconds in device if seconds is not None]
    return {
        "window_s": window_s,
        "asked_per_s": len(answers) / window_s,
        "done_per_s": len(done) / window_s,
        "pictures_per_s": sum(answer.pictures for answer in done) / window_s,
        "device_s_per_s": sum(known) / window_s if len(known) == len(device) else None,
    }


def _within(answer: Answer, window_s: float) -> bool:
    return answer.ended_at_s is not None and answer.ended_at_s <= window_s


def part(count: int, of: Sequence[Any]) -> float:
    """Return a count as a share of a sequence; 0 of an empty one."""
    return count / len(of) if of else 0.0
