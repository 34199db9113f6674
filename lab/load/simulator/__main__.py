"""The benchmark's mix on simulated fleets: `python -m lab.load.simulator`, for
docs/performance/fleets.md.

Prints the table. Time is virtual, so figures depend only on the code; the run time depends on the
number of jobs.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import tempfile
from pathlib import Path

from deploy.local.embedded_redis import embedded
from lab.load.simulator.report import MIX, Summary, World, head, line, published_mix, run
from lab.load.simulator.schedulers import SETTINGS, Ordered, baselines

OURS, BY_DEADLINE = "ours", "ours, by deadline alone"
ORDERS: dict[str, Ordered | float] = {
    **{baseline.name: baseline for baseline in baselines()},
    OURS: SETTINGS.deadline_credit_s,
    BY_DEADLINE: 1e9,
}
"""Baselines, and our queue by its deadline credit."""


def main() -> None:
    parser = argparse.ArgumentParser("python -m lab.load.simulator", description=__doc__)
    parser.add_argument("--mix", type=Path, default=MIX)
    parser.add_argument("--pools", type=int, default=8)
    parser.add_argument("--slots", type=int, default=1)
    parser.add_argument("--load", type=float, nargs="+", default=[0.8, 1.2, 1.6, 2.0])
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shared", action="store_true", help="each pool serves both kinds")
    parser.add_argument("--orders", nargs="+", choices=ORDERS, default=list(ORDERS))
    options = parser.parse_args()
    if not all(0 < load < math.inf for load in options.load):
        parser.error("--load: more than nothing")
    mix = published_mix(options.mix)
    print(*head(), sep="\n", flush=True)
    with tempfile.TemporaryDirectory() as folder, embedded(Path(folder)) as url:
        for load in options.load:
            world = World(
                options.pools, load, options.seconds, options.shared, options.slots, options.seed
            )
            for name in options.orders:
                summary = Summary(asyncio.run(run(url, world, ORDERS[name], mix)))
                print(line(world, name, summary), flush=True)


if __name__ == "__main__":
    main()
