"""Figures of drawn candidates, and those of them that no other one beats."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from models.checkpoint.presets_file import PLANNED
from models.spec.quality_presets import Measured, Quality
from workers.calibration.drawing import Drawing
from workers.media.psnr import psnr_db

LEAST_DB = 15.0
"""PSNR below which nobody would know the image again."""
SLACK_DB = 1.5
"""Distance from the frontier that few images may be wrong by."""
NEARER_DB, FASTER = 0.5, 0.95
"""Differences that make a preset of its own: so much nearer, or a share of the operations."""


@dataclass(frozen=True)
class Figures:
    """Figures of one preset over the same images."""

    psnr_db: tuple[float, ...]
    operations: float
    """Share of exact ones, in the mean."""
    time: float
    """Share of an exact image's, the median."""

    @classmethod
    def of(cls, drawings: Sequence[Drawing], exact: Sequence[Drawing]) -> Figures:
        """Return the figures of drawings against exact ones of the same requests."""
        pairs = list(zip(drawings, exact, strict=True))
        return cls(
            tuple(psnr_db(one.pixels, other.pixels) for one, other in pairs),
            float(np.mean([one.operations / other.operations for one, other in pairs])),
            median(one.seconds / other.seconds for one, other in pairs),
        )

    @property
    def worst_db(self) -> float:
        """PSNR of the image that is farthest from exact."""
        return min(self.psnr_db)

    def on(self, quality: Quality, steps: int, about: str) -> Quality:
        """Return a preset with these figures."""
        measured = Measured(
            steps=steps,
            images=len(self.psnr_db),
            worst_db=math.floor(10 * self.worst_db) / 10,
            operations=round(self.operations, 3),
            time=round(self.time, 3),
        )
        return quality.model_copy(
            update={
                "psnr_db": round(median(self.psnr_db), 1),
                "measured": measured,
                "about": about,
            }
        )


def promising(found: Mapping[str, Figures]) -> list[str]:
    """Return the names of those that may turn out to be on the frontier, fastest first."""
    names, best_db = [], LEAST_DB
    for name in sorted(found, key=lambda name: found[name].operations):
        if found[name].worst_db > best_db - SLACK_DB:
            names.append(name)
        best_db = max(best_db, found[name].worst_db)
    return names


def frontier(found: Mapping[str, Figures]) -> dict[str, str]:
    """Return the candidates that none beats, fastest first, by the names that they get."""
    chosen: list[str] = []
    for name in sorted(found, key=lambda name: (found[name].operations, -found[name].worst_db)):
        figures = found[name]
        if figures.worst_db < LEAST_DB or figures.operations >= 1:
            continue
        if not chosen:
            chosen.append(name)
            continue
        last = found[chosen[-1]]
        if figures.worst_db < last.worst_db + NEARER_DB:
            continue
        if last.operations > FASTER * figures.operations:
            chosen.pop()  # hardly faster, and farther
        chosen.append(name)
    return {f"{PLANNED}{1 / found[name].operations:.2f}x": name for name in chosen}
