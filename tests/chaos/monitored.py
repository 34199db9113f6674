"""Chaos with Prometheus: `python -m tests.chaos.monitored --minutes 10 --seed 7`.

Afterwards the ledger's files, Prometheus and the clients, which count independently, must agree.
Front ends are spared, because their counters of answers would restart with them; the ledger's sums
would not.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from service.admission.refusals import REDIS_REASON
from tests.chaos.__main__ import ACT_EVERY_S, say
from tests.chaos.clients import Client
from tests.chaos.history import History
from tests.chaos.invariants import breaches
from tests.chaos.observer import Observer
from tests.chaos.orders import FollowUp, Order
from tests.chaos.plan import FRONTS
from tests.chaos.processes import until
from tests.chaos.run import Run, Size
from tests.deploy.watching.prometheus import Prometheus, running

SEEN_S = 60.0
"""Time until the last change was scraped on a busy machine."""
DIGITS = 3
"""Decimals of device-seconds, which are sums of floats."""
BY = {
    "atelier_ledger_jobs_total": "model, tenant_class, outcome",
    "atelier_job_device_seconds_total": "model, tenant_class, outcome, payer",
    "atelier_images_total": "model, tenant_class",
    "atelier_frames_total": "model, tenant_class",
    "atelier_pixels_total": "model, tenant_class",
}

Counts = dict[str, float]


def ledger_sum(metric: str, by: str = "") -> str:
    """Query for a sum of the ledger, which all front ends export alike."""
    return f"sum by ({by}) (max by ({BY[metric]}) ({metric}))"


class Watched(Run):
    """A run whose front ends Prometheus scrapes."""

    def __init__(self, folder: Path, *rest: Any) -> None:
        super().__init__(folder, *rest)
        self._folder = folder
        self._watching = ExitStack()
        self.counted: dict[str, Counts] = {}
        """Counts by source, then by name."""

    async def run(self) -> History:
        with self._watching:
            return await super().run()

    async def _learn(self, client: Client) -> float:
        pages = [url.removeprefix("http://") for url in self._system.fronts]
        targets = {"atelier-frontend": pages, "atelier-pools": []}
        self._prometheus = self._watching.enter_context(running(self._folder, targets))
        self._asking = client
        return await super()._learn(client)

    async def _disturb(self, client: Client, placed: Sequence[Order]) -> None:
        """Cancel the jobs that others delete: clients cannot count deleted jobs."""
        counted = [
            replace(order, then=FollowUp.CANCELS) if order.then is FollowUp.DELETES else order
            for order in placed
        ]
        await super()._disturb(client, counted)

    async def _reckon(self, observer: Observer) -> None:
        await super()._reckon(observer)
        self.counted["ledger"] = by_ledger(self.history)
        self.counted["clients"] = by_clients(self.history, self._asking)

        async def has_seen_all() -> bool:
            self.counted["Prometheus"] = await asyncio.to_thread(by_prometheus, self._prometheus)
            return not differences(self.counted)

        try:
            await until(has_seen_all, SEEN_S, "Prometheus to have seen all")
        except TimeoutError:
            return  # differences are reported later
        finally:
            self.unanswered = self._asking.unanswered


def by_ledger(history: History) -> Counts:
    """Sums of the ledger's files."""
    ends = Counter(
        f"jobs {record.outcome}" for record in history.ledger if not record.is_correction
    )
    counts: Counts = {"jobs": ends.total(), **ends}
    for name in ("images", "frames", "pixels"):
        counts[name] = sum(getattr(record, name) for record in history.ledger)
    for payer in ("device", "tenant", "house", "lost"):
        total = sum(getattr(record, f"{payer}_seconds") for record in history.ledger)
        counts[f"{payer}-seconds"] = round(total, DIGITS)
    return counts


def by_clients(history: History, client: Client) -> Counts:
    """Counts of clients' jobs, and of answers if no request went unanswered."""
    counts: Counts = {"jobs": len(history.jobs)}
    counts |= Counter(f"jobs {job.state}" for job in history.jobs)
    used = sum(job.view["usage"]["device_seconds"] for job in history.jobs)
    counts["device-seconds"] = round(used, DIGITS)
    if not client.unanswered:
        counts |= {f"answers {status}": n for status, n in client.statuses.items()}
        counts["refusals"] = sum(n for status, n in client.statuses.items() if status >= "4")
        counts |= by_reason(client.codes)
    return counts


def by_reason(refused: Mapping[str, float]) -> Counts:
    """Counts of refusals by reason, and of all of these.

    Refusals without Redis are left out: most of them precede admission, which counts the others.
    """
    counts = {
        f"refusals {reason}": count
        for reason, count in refused.items()
        if count and reason != REDIS_REASON
    }
    return {**counts, "refusals with Redis": sum(counts.values())}


def by_prometheus(prometheus: Prometheus) -> Counts:
    """Counts scraped by Prometheus."""
    counts: Counts = {}
    for labels, value in query_values(
        prometheus, ledger_sum("atelier_ledger_jobs_total", "outcome")
    ):
        if value:
            counts[f"jobs {labels['outcome']}"] = value
    counts["jobs"] = sum(counts.values())
    for name in ("images", "frames", "pixels"):
        counts[name] = sum(
            value for _, value in query_values(prometheus, ledger_sum(f"atelier_{name}_total"))
        )
    seconds: Counter[str] = Counter()
    query = ledger_sum("atelier_job_device_seconds_total", "payer, outcome")
    for labels, value in query_values(prometheus, query):
        seconds["device"] += value
        seconds[labels["payer"]] += value
        seconds["lost"] += value * (labels["outcome"] == "lost")
    counts |= {f"{name}-seconds": round(value, DIGITS) for name, value in seconds.items()}
    answers = 'atelier_http_requests_total{route="/v1/generate",method="POST"}'
    counts["refusals"] = 0
    for labels, value in query_values(prometheus, f"sum by (status) ({answers})"):
        counts[f"answers {labels['status']}"] = value
        counts["refusals"] += value * (labels["status"] >= "4")
    refused = query_values(prometheus, "sum by (reason) (atelier_jobs_refused_total)")
    return counts | by_reason({labels["reason"]: value for labels, value in refused})


def query_values(prometheus: Prometheus, expr: str) -> list[tuple[Mapping[str, str], float]]:
    return [(sample["metric"], float(sample["value"][1])) for sample in prometheus.query(expr)]


def differences(counted: Mapping[str, Counts]) -> list[str]:
    """Names whose counts differ between sources."""
    names = {name for counts in counted.values() for name in counts}
    counts_by_name = {
        name: {source: counts[name] for source, counts in counted.items() if name in counts}
        for name in sorted(names)
    }
    return [f"{name}: {by}" for name, by in counts_by_name.items() if len(set(by.values())) > 1]


def size_of(minutes: float) -> Size:
    """Length and actions of a run of some minutes, which spares front ends."""
    span_s = 60 * minutes
    return Size(span_s, round(span_s / ACT_EVERY_S), spared=FRONTS)


def faults_of(run: Watched) -> list[str]:
    """Broken invariants and different counts of a finished run."""
    faults = [str(breach) for breach in breaches(run.history)]
    return faults + [f"counted differently: {fault}" for fault in differences(run.counted)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.monitored", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="of chaos (default: 10)")
    parser.add_argument("--seed", type=int, help="of the plan (default: a new one)")
    args = parser.parse_args()
    seed = secrets.randbelow(2**32) if args.seed is None else args.seed
    size = size_of(args.minutes)
    say(f"seed {seed}: {size.acts} acts in {args.minutes:g} minutes")
    folder = Path(tempfile.mkdtemp(prefix="watched-"))
    run = Watched(folder, seed, size, say)
    asyncio.run(run.run())
    for source, counts in run.counted.items():
        say(f"{source}: {counts}")
    say(f"{run.unanswered} requests of clients had no answer")
    faults = faults_of(run)
    for fault in faults:
        say(fault)
    if faults:
        say(f"{len(faults)} faults; the logs are in {folder}")
        return 1
    shutil.rmtree(folder)
    say("ledger, Prometheus and clients have counted the same, and every invariant holds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
