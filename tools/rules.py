"""Kubernetes manifests of the Prometheus rules in `deploy/prometheus/rules`.

`python -m tools.rules > deploy/prometheus/kubernetes/rules.yaml` (`make rules`) writes them for
Google's Managed Service for Prometheus. `python -m tools.rules PrometheusRule` prints them for the
Prometheus Operator. `--values FILE` takes the prices of chips from a cluster's values. A test
compares the file with the rules.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from pathlib import Path

RULES = tuple(
    sorted((Path(__file__).parents[1] / "deploy" / "prometheus" / "rules").glob("*.yaml"))
)
API = {"Rules": "monitoring.googleapis.com/v1", "PrometheusRule": "monitoring.coreos.com/v1"}
"""API version of each kind."""
EVERY = "30s"
"""Evaluation interval, which Google's kind requires."""
HEAD = """\
# Written by `make rules` from deploy/prometheus/rules.
apiVersion: {api}
kind: {kind}
metadata:
  name: atelier
  labels:
    app.kubernetes.io/name: atelier
    app.kubernetes.io/part-of: atelier
spec:
  groups:
"""
GROUP = re.compile(r"^( +)- name: .+\n", re.MULTILINE)


PRICES = re.compile(r"( +- \{record: atelier:chip_price:dollars_per_hour, .+\n)+")
"""Lines of the examples of prices."""


def manifest(kind: str, prices: Mapping[tuple[str, bool], float] | None = None) -> str:
    """Return a manifest with all groups and their comments.

    Args:
        prices: prices per hour by chip and by whether its machine is a spot one, in place of
            the examples.
    """
    text = HEAD.format(kind=kind, api=API[kind]) + "".join(map(_groups, RULES))
    return PRICES.sub(lambda _: _lines(prices), text) if prices else text


def _lines(prices: Mapping[tuple[str, bool], float]) -> str:
    """Return the rules of prices; the chart's template `atelier.prices` writes the same."""
    return "".join(
        "        - {record: atelier:chip_price:dollars_per_hour, "
        f"expr: vector({price:.15g}), "
        f'labels: {{chip: "{chip}", spot: "{str(is_spot).lower()}"}}}}\n'
        for (chip, is_spot), price in sorted(prices.items())
    )


def _groups(file: Path) -> str:
    """Return the groups of one file, indented below `spec`."""
    _, _, body = file.read_text().partition("\ngroups:\n")
    timed = GROUP.sub(rf"\g<0>\1  interval: {EVERY}\n", body)
    return re.sub(r"^(?=.)", "  ", timed, flags=re.MULTILINE)


def main() -> int:
    """Print a manifest; return 0, or 78 for invalid values."""
    parser = argparse.ArgumentParser(prog="python -m tools.rules", description=__doc__)
    parser.add_argument("kind", nargs="?", choices=API, default="Rules", help="kind of manifest")
    parser.add_argument("--values", type=Path, metavar="FILE", help="values with prices of chips")
    args = parser.parse_args()
    prices = {}
    if args.values:
        from tools.cluster.values import ValuesError, read

        try:
            prices = read(args.values).chip_prices
        except ValuesError as error:
            print(error, file=sys.stderr)
            return 78
    sys.stdout.write(manifest(args.kind, prices))
    return 0


if __name__ == "__main__":
    sys.exit(main())
