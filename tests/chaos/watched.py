"""Chaos with a Prometheus that watches: `python -m tests.chaos.watched --minutes 10 --seed 7`.

Afterwards three who know nothing of each other have counted the same: the ledger's files, the
Prometheus, and the clients. Nothing is done to front ends, whose own counters (of answers) would go
with them; the ledger's sums would not.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.chaos.__main__ import ACT_EVERY_S, ORDER_EVERY_S, say
from tests.chaos.clients import Client
from tests.chaos.history import History
from tests.chaos.invariants import breaches
from tests.chaos.observer import Observer
from tests.chaos.orders import Then
from tests.chaos.plan import FRONTS
from tests.chaos.processes import until
from tests.chaos.run import Run, Size
from tests.deploy.watching.prometheus import Prometheus, running

SPARING = 2
"""Factor by which orders are fewer than in other runs: what waits has to be drawn, too."""
SEEN_S = 60.0
"""Until the last change was scraped, on a busy machine."""
DIGITS = 3
"""Of device-seconds: sums of floats."""
BY = {
    "atelier_ledger_jobs_total": "model, tenant_class, outcome",
    "atelier_job_device_seconds_total": "model, tenant_class, outcome, payer",
    "atelier_images_total": "model, tenant_class",
    "atelier_frames_total": "model, tenant_class",
    "atelier_pixels_total": "model, tenant_class",
}

Counts = dict[str, float]


def told(metric: str, by: str = "") -> str:
    """Query a sum of the ledger, which all front ends tell alike."""
    return f"sum by ({by}) (max by ({BY[metric]}) ({metric}))"


class Watched(Run):
    """A run with a Prometheus of the front ends."""

    def __init__(self, folder: Path, *rest: Any) -> None:
        super().__init__(folder, *rest)
        self._folder = folder
        self._orders = tuple(
            replace(order, then=Then.CANCELS) if order.then is Then.DELETES else order
            for order in self._orders
        )  # a client can't count what it has deleted
        self._watching = ExitStack()
        self.counted: dict[str, Counts] = {}
        """By whom: what each has counted, by name."""

    async def run(self) -> History:
        with self._watching:
            return await super().run()

    async def _learn(self, client: Client) -> None:
        pages = [url.removeprefix("http://") for url in self._system.fronts]
        targets = {"atelier-frontend": pages, "atelier-pools": []}
        self._prometheus = self._watching.enter_context(running(self._folder, targets))
        self._asking = client
        await super()._learn(client)

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
            return  # what differs is told
        finally:
            self.unanswered = self._asking.unanswered


def by_ledger(history: History) -> Counts:
    """Sums of the files."""
    ends = Counter(f"jobs {one.outcome}" for one in history.ledger if not one.is_correction)
    found: Counts = {"jobs": ends.total(), **ends}
    for name in ("images", "frames", "pixels"):
        found[name] = sum(getattr(one, name) for one in history.ledger)
    for payer in ("device", "tenant", "house", "lost"):
        total = sum(getattr(one, f"{payer}_seconds") for one in history.ledger)
        found[f"{payer}-seconds"] = round(total, DIGITS)
    return found


def by_clients(history: History, client: Client) -> Counts:
    """What clients were told: of their jobs, and of answers where each request had one."""
    found: Counts = {"jobs": len(history.seen)}
    found |= Counter(f"jobs {job.state}" for job in history.seen)
    used = sum(job.view["usage"]["device_seconds"] for job in history.seen)
    found["device-seconds"] = round(used, DIGITS)
    if not client.unanswered:
        found |= {f"answers {status}": n for status, n in client.statuses.items()}
        found["refusals"] = sum(n for status, n in client.statuses.items() if status >= "4")
    return found


def by_prometheus(prometheus: Prometheus) -> Counts:
    """What it has scraped."""
    found: Counts = {}
    for labels, value in ask(prometheus, told("atelier_ledger_jobs_total", "outcome")):
        if value:
            found[f"jobs {labels['outcome']}"] = value
    found["jobs"] = sum(found.values())
    for name in ("images", "frames", "pixels"):
        found[name] = sum(value for _, value in ask(prometheus, told(f"atelier_{name}_total")))
    seconds: Counter[str] = Counter()
    asked = told("atelier_job_device_seconds_total", "payer, outcome")
    for labels, value in ask(prometheus, asked):
        seconds["device"] += value
        seconds[labels["payer"]] += value
        seconds["lost"] += value * (labels["outcome"] == "lost")
    found |= {f"{name}-seconds": round(value, DIGITS) for name, value in seconds.items()}
    answers = 'atelier_http_requests_total{route="/v1/generate",method="POST"}'
    found["refusals"] = 0
    for labels, value in ask(prometheus, f"sum by (status) ({answers})"):
        found[f"answers {labels['status']}"] = value
        found["refusals"] += value * (labels["status"] >= "4")
    return found


def ask(prometheus: Prometheus, expr: str) -> list[tuple[Mapping[str, str], float]]:
    return [(one["metric"], float(one["value"][1])) for one in prometheus.query(expr)]


def differences(counted: Mapping[str, Counts]) -> list[str]:
    """Names of which two of them have counted something else."""
    names = {name for counts in counted.values() for name in counts}
    found = {
        name: {who: counts[name] for who, counts in counted.items() if name in counts}
        for name in sorted(names)
    }
    return [f"{name}: {by}" for name, by in found.items() if len(set(by.values())) > 1]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.watched", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="of chaos (default: 10)")
    parser.add_argument("--seed", type=int, help="of the plan (default: a new one)")
    args = parser.parse_args()
    seed = secrets.randbelow(2**32) if args.seed is None else args.seed
    span_s = 60 * args.minutes
    acts, orders = round(span_s / ACT_EVERY_S), round(span_s / (SPARING * ORDER_EVERY_S))
    say(f"seed {seed}: {acts} acts and {orders} orders in {args.minutes:g} minutes")
    folder = Path(tempfile.mkdtemp(prefix="watched-"))
    run = Watched(folder, seed, Size(span_s, acts, orders, FRONTS), say)
    history = asyncio.run(run.run())
    for who, counts in run.counted.items():
        say(f"{who}: {counts}")
    say(f"{run.unanswered} requests of clients had no answer")
    found = [str(breach) for breach in breaches(history)]
    found += [f"counted differently: {one}" for one in differences(run.counted)]
    for one in found:
        say(one)
    if found:
        say(f"{len(found)} faults; the logs are in {folder}")
        return 1
    shutil.rmtree(folder)
    say("ledger, Prometheus and clients have counted the same, and every invariant holds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
