"""Prices of chips, read from Prometheus' rules (`deploy/prometheus/rules/prices.yaml`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from deploy.exit_codes import UsageError

RECORD = "atelier:chip_price:dollars_per_hour"
VECTOR = re.compile(r"vector\(([0-9.e+-]+)\)")

Machine = tuple[str, bool]
"""Kind of a chip, and whether its machine may be preempted (spot)."""


def read(file: Path) -> Mapping[Machine, float]:
    """Read chip prices per hour from a file of Prometheus rules, or their Kubernetes manifest.

    Raises: UsageError: the file is unreadable, or has no price.
    """
    try:
        document = yaml.safe_load(file.read_text())
        prices = dict(_prices(document.get("spec", document)["groups"]))
    except (OSError, UnicodeError, yaml.YAMLError, LookupError, AttributeError, TypeError) as error:
        raise UsageError(f"--prices: {file} is not a file of Prometheus rules ({error})") from None
    if not prices:
        raise UsageError(f"--prices: {file} has no rule that records {RECORD}")
    return prices


def _prices(groups: list[Any]) -> Iterator[tuple[Machine, float]]:
    """Yield the chip prices among Prometheus rules. Raises: UsageError: one is not a number."""
    for rule in (rule for group in groups for rule in group["rules"]):
        if rule.get("record") != RECORD:
            continue
        match = VECTOR.fullmatch(rule["expr"])
        if match is None:
            raise UsageError(f"--prices: {rule['expr']!r} is not a price; write one as vector(2.7)")
        yield (rule["labels"]["chip"], rule["labels"]["spot"] == "true"), float(match[1])
