"""Statistics of a load's outcomes, as pure functions."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from deploy.bench.serving.load import Alone
from deploy.bench.serving.request_outcome import REFUSED, SUCCEEDED, RequestOutcome

PERCENTS = (50, 90, 99)
TIMES = ("accept_s", "queue_s", "run_s", "device_s", "outside_s", "fetch_s", "whole_s")
"""Times of an answer that are reported as percentiles."""

Key = TypeVar("Key", bound=Hashable)


def percentile(values: Iterable[float], percent: float) -> float | None:
    """Return a percentile by linear interpolation; None without values.

    Source: Hyndman and Fan 1996, definition 7 (NumPy's default).
    """
    ordered = sorted(values)
    if not ordered:
        return None
    position = percent / 100 * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])


def spread(values: Iterable[float | None]) -> dict[str, float | None]:
    """Return p50, p90, p99 and the maximum of the values that are not None."""
    present = [value for value in values if value is not None]
    percentiles = {f"p{percent}": percentile(present, percent) for percent in PERCENTS}
    return percentiles | {"max": max(present, default=None)}


def grouped(
    answers: Iterable[RequestOutcome], by: Callable[[RequestOutcome], Key]
) -> dict[Key, list[RequestOutcome]]:
    """Group the outcomes of a load's requests by a key."""
    groups: defaultdict[Key, list[RequestOutcome]] = defaultdict(list)
    for answer in answers:
        groups[by(answer)].append(answer)
    return dict(groups)


def waits(answers: Sequence[RequestOutcome]) -> dict[str, Any]:
    """Return the percentiles of the times of successful requests."""
    done = [answer for answer in answers if answer.outcome == SUCCEEDED]
    times = {name: spread(getattr(answer, name) for answer in done) for name in TIMES}
    return {"asked": len(answers), "succeeded": len(done), **times}


def refusals(answers: Iterable[RequestOutcome]) -> list[dict[str, Any]]:
    """Count a load's refused requests by status and reason, most frequent first."""
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


def outcomes(answers: Iterable[RequestOutcome]) -> dict[str, int]:
    """Count a load's requests by outcome, most frequent first."""
    return dict(Counter(answer.outcome for answer in answers).most_common())


def reasons(answers: Iterable[RequestOutcome]) -> dict[str, int]:
    """Count the reasons of a load's outcomes other than success and refusal."""
    reported = (f"{a.outcome}: {a.reason}" for a in answers if a.reason and a.outcome != REFUSED)
    return dict(Counter(reported).most_common())


def goodput(
    answers: Sequence[RequestOutcome], alone: Mapping[str, Alone], scales: Iterable[float]
) -> list[dict[str, float]]:
    """Return, at each scale, the share of requests done within that multiple of the unloaded time.

    Refusals and failures count as not done. Empty if no unloaded times are known.
    """
    measured = [answer for answer in answers if answer.timed_request.shape in alone]
    if not measured:
        return []
    rows = []
    for scale in scales:
        met = sum(
            answer.met(scale * alone[answer.timed_request.shape].whole_s) for answer in measured
        )
        rows.append(
            {"scale": scale, "asked": len(measured), "met": met, "share": part(met, measured)}
        )
    return rows


def deadlines(answers: Iterable[RequestOutcome]) -> list[dict[str, Any]]:
    """Count the requests with a deadline, and those that met it, by deadline scale.

    The scale of deadlines in seconds is None.
    """
    with_deadline = [answer for answer in answers if answer.deadline_s is not None]
    groups = grouped(with_deadline, lambda answer: answer.timed_request.deadline_scale)
    rows = []
    for scale, those in sorted(groups.items(), key=lambda group: group[0] or 0.0):
        met = sum(answer.met(answer.deadline_s or 0.0) for answer in those)
        row = {"scale": scale, "asked": len(those), "met": met, "share": part(met, those)}
        rows.append(row | {"outcomes": outcomes(those)})
    return rows


def throughput(answers: Sequence[RequestOutcome], window_s: float) -> dict[str, float | None]:
    """Return rates per second of the load; device-seconds only if every job reports them."""
    done = [a for a in answers if a.outcome == SUCCEEDED and _within(a, window_s)]
    device = [answer.device_s for answer in done]
    reported = [seconds for seconds in device if seconds is not None]
    return {
        "window_s": window_s,
        "asked_per_s": len(answers) / window_s,
        "done_per_s": len(done) / window_s,
        "pictures_per_s": sum(answer.images for answer in done) / window_s,
        "device_s_per_s": sum(reported) / window_s if len(reported) == len(device) else None,
    }


def reuse(answers: Sequence[RequestOutcome]) -> dict[str, float]:
    """Count repeated requests, those that received an earlier job's files, and what that saved.

    A request saves the device-seconds of the job that generated its files, if this load sent that.
    """
    requests = grouped(
        answers, lambda answer: (answer.timed_request.tenant, _text(answer.timed_request.request))
    )
    done = [answer for answer in answers if answer.outcome == SUCCEEDED]
    device_s = {answer.job_id: answer.device_s or 0.0 for answer in done if not answer.reuses}
    reused = [answer for answer in done if answer.reuses]
    saved_s = sum(device_s.get(answer.reuses, 0.0) for answer in reused)
    used_s = sum(device_s.values())
    return {
        "repeated": sum(len(those) - 1 for those in requests.values()),
        "reused": len(reused),
        "hits": sum(answer.is_hit for answer in reused),
        "share": part(len(reused), done),
        "saved_device_s": saved_s,
        "saved_share": saved_s / (saved_s + used_s) if saved_s else 0.0,
    }


def _text(request: Mapping[str, Any]) -> str:
    return json.dumps(request, sort_keys=True)


def _within(answer: RequestOutcome, window_s: float) -> bool:
    return answer.ended_at_s is not None and answer.ended_at_s <= window_s


def part(count: int, of: Sequence[Any]) -> float:
    """Return a count as a share of a sequence's length, or 0."""
    return count / len(of) if of else 0.0
