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

import yaml

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


def prices_of(values: Path) -> dict[tuple[str, bool], float]:
    """Read the prices of a file of values, which `python -m tools.cluster` validates."""
    prices = (yaml.safe_load(values.read_text()) or {}).get("prices") or {}
    return {
        (chip, kind == "spot"): price
        for chip, by_kind in prices.items()
        for kind, price in by_kind.items()
    }


def main() -> None:
    """Print a manifest."""
    parser = argparse.ArgumentParser(prog="python -m tools.rules", description=__doc__)
    parser.add_argument("kind", nargs="?", choices=API, default="Rules", help="kind of manifest")
    parser.add_argument("--values", type=Path, metavar="FILE", help="values with prices of chips")
    args = parser.parse_args()
    prices = prices_of(args.values) if args.values else None
    sys.stdout.write(manifest(args.kind, prices))


if __name__ == "__main__":
    main()
