"""What a Prometheus has of a time, as a dashboard's queries ask for it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.deploy.watching.files import filled_in
from tests.deploy.watching.prometheus import Prometheus

Series = list[tuple[str, np.ndarray, np.ndarray]]
"""Name, seconds since the beginning, values."""


@dataclass(frozen=True)
class Span:
    """What is shown; times are seconds since the epoch."""

    prometheus: Prometheus
    start: float
    end: float
    interval: str = "20s"
    """That rates are taken over."""

    @property
    def length_s(self) -> int:
        return int(self.end - self.start)

    def ask(self, target: Mapping[str, Any]) -> Series:
        expr = filled_in(target["expr"], self.interval, f"{self.length_s}s")
        if target["instant"]:
            found = self.prometheus.query(expr, self.end)
            return [
                (name(target, one["metric"]), np.array([self.length_s]), numbers([one["value"]]))
                for one in found
            ]
        found = self.prometheus.span(expr, self.start, self.end, 1)
        return [(name(target, one["metric"]), *self._each_second(one["values"])) for one in found]

    def _each_second(self, samples: Sequence[Sequence[Any]]) -> tuple[np.ndarray, np.ndarray]:
        """Times and values; no number where there is no sample."""
        values = np.full(self.length_s + 1, np.nan)
        at = np.array([round(time - self.start) for time, _ in samples])
        values[at] = numbers(samples)
        return np.arange(len(values)), values


def numbers(samples: Sequence[Sequence[Any]]) -> np.ndarray:
    return np.array([float(value) for _, value in samples])


def name(target: Mapping[str, Any], labels: Mapping[str, str]) -> str:
    """By the query's legend; without one, by all labels."""
    if target["legendFormat"] == "__auto":
        return ", ".join(labels.values())
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), target["legendFormat"])
