"""Query results of a Prometheus over a time range."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.deploy.watching.files import filled_in
from tests.deploy.watching.prometheus import Prometheus

Series = list[tuple[str, np.ndarray, np.ndarray]]
"""Name, seconds since the start, values."""


@dataclass(frozen=True)
class Span:
    """The shown time range; times are seconds since the epoch."""

    prometheus: Prometheus
    start: float
    end: float
    interval: str = "20s"
    """Window of rates."""

    @property
    def length_s(self) -> int:
        return int(self.end - self.start)

    def query(self, target: Mapping[str, Any]) -> Series:
        expr = filled_in(target["expr"], self.interval, f"{self.length_s}s")
        if target["instant"]:
            answers = self.prometheus.query(expr, self.end)
            return [
                (
                    name(target, answer["metric"]),
                    np.array([self.length_s]),
                    numbers([answer["value"]]),
                )
                for answer in answers
            ]
        answers = self.prometheus.span(expr, self.start, self.end, 1)
        return [
            (name(target, answer["metric"]), *self._each_second(answer["values"]))
            for answer in answers
        ]

    def _each_second(self, samples: Sequence[Sequence[Any]]) -> tuple[np.ndarray, np.ndarray]:
        """Times and values per second; NaN without a sample."""
        values = np.full(self.length_s + 1, np.nan)
        indices = np.array([round(time - self.start) for time, _ in samples])
        values[indices] = numbers(samples)
        return np.arange(len(values)), values


def numbers(samples: Sequence[Sequence[Any]]) -> np.ndarray:
    return np.array([float(value) for _, value in samples])


def name(target: Mapping[str, Any], labels: Mapping[str, str]) -> str:
    """Name a series by the query's legend, or by all labels."""
    if target["legendFormat"] == "__auto":
        return ", ".join(labels.values())
    return re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), target["legendFormat"])
