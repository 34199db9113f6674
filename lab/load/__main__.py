"""Queue under load, without models: `make -C lab load`, for docs/design/scheduling.md.

Prints the page's tables and draws its plot. Takes about twenty minutes on an otherwise idle
machine.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

from deploy.local.embedded_redis import embedded
from lab.load import backlog, light, shares, trace
from lab.load.plot import draw

PLOT = Path("docs/images/trace.svg")
PARTS = ("backlog", "shares", "light", "trace")


def lines(part: str, url: str, plot: Path) -> Iterator[str]:
    """Rows of a part's table."""
    if part == "backlog":
        yield from backlog.table(url, (1_000, 10_000, 100_000), seconds=15)
    elif part == "shares":
        yield from shares.table(url, 100_000, seconds=60)
    elif part == "light":
        yield from light.table(url, 20_000, seconds=60)
    else:
        rows = list(trace.rows(url, trace.LOADS))
        yield from trace.table(rows)
        draw(rows, plot)


def main() -> None:
    parser = argparse.ArgumentParser("python -m lab.load", description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (all)")
    parser.add_argument("--plot", type=Path, default=PLOT, metavar="FILE")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}")
    for part in options.parts or PARTS:
        with tempfile.TemporaryDirectory() as folder, embedded(Path(folder)) as url:
            print(f"\n## {part}\n", flush=True)
            for line in lines(part, url, options.plot):
                print(line, flush=True)


if __name__ == "__main__":
    main()
