"""Chaos test of any length: `python -m tests.chaos --minutes 10 --seed 7`."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

from tests.chaos.invariants import breaches
from tests.chaos.run import Run, Size

ACT_EVERY_S = 3.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="of chaos (default: 10)")
    parser.add_argument("--seed", type=int, help="of the plan (default: a new one)")
    parser.add_argument("--orders", type=int, help="number of orders (default: by their duration)")
    args = parser.parse_args()
    seed = secrets.randbelow(2**32) if args.seed is None else args.seed
    span_s = 60 * args.minutes
    size = Size(span_s, round(span_s / ACT_EVERY_S), args.orders)
    say(f"seed {seed}: {size.acts} acts in {args.minutes:g} minutes")
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    say(f"logs: {folder}")
    broken = breaches(asyncio.run(Run(folder, seed, size, say).run()))
    for breach in broken:
        say(str(breach))
    if broken:
        say(f"{len(broken)} breaches")
        return 1
    shutil.rmtree(folder)
    say("every invariant holds")
    return 0


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
