"""Measurements of candidate presets, and selection of the candidates on the Pareto frontier."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from models.checkpoint.presets_file import PLANNED
from models.spec.quality_presets import Measured, Quality
from workers.calibration.drawing import GeneratedImage
from workers.media.psnr import psnr_db

LEAST_DB = 15.0
"""Lowest acceptable PSNR: below it, the image is no longer recognizable."""
SLACK_DB = 1.5
"""Tolerated distance from the frontier when few images are measured."""
NEARER_DB, FASTER = 0.5, 0.95
"""Smallest differences that justify a separate preset: PSNR in dB, or ratio of FLOPs."""


@dataclass(frozen=True)
class Figures:
    """Measurements of one preset over the same images: PSNR and cost."""

    psnr_db: tuple[float, ...]
    operations: float
    """Mean share of an exact image's FLOPs."""
    time: float
    """Median share of an exact image's time."""

    @classmethod
    def of(cls, drawings: Sequence[GeneratedImage], exact: Sequence[GeneratedImage]) -> Figures:
        """Compare a preset's images with the exact images of the same requests."""
        pairs = list(zip(drawings, exact, strict=True))
        return cls(
            tuple(psnr_db(drawing.pixels, reference.pixels) for drawing, reference in pairs),
            float(
                np.mean([drawing.operations / reference.operations for drawing, reference in pairs])
            ),
            median(drawing.seconds / reference.seconds for drawing, reference in pairs),
        )

    @property
    def worst_db(self) -> float:
        """PSNR of the image that differs most from the exact one."""
        return min(self.psnr_db)

    def on(self, quality: Quality, steps: int, about: str) -> Quality:
        """Return a quality preset with these measurements added."""
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


def promising(candidates: Mapping[str, Figures]) -> list[str]:
    """Return the names of presets that may be on the quality-speed frontier, fastest first."""
    names, best_db = [], LEAST_DB
    for name in sorted(candidates, key=lambda name: candidates[name].operations):
        if candidates[name].worst_db > best_db - SLACK_DB:
            names.append(name)
        best_db = max(best_db, candidates[name].worst_db)
    return names


def frontier(candidates: Mapping[str, Figures]) -> dict[str, str]:
    """Return the presets on the quality-speed frontier, fastest first, by their new names."""
    chosen: list[str] = []
    for name in sorted(
        candidates, key=lambda name: (candidates[name].operations, -candidates[name].worst_db)
    ):
        figures = candidates[name]
        if figures.worst_db < LEAST_DB or figures.operations >= 1:
            continue
        if not chosen:
            chosen.append(name)
            continue
        last = candidates[chosen[-1]]
        if figures.worst_db < last.worst_db + NEARER_DB:
            continue
        if last.operations > FASTER * figures.operations:
            chosen.pop()  # slightly faster and less accurate
        chosen.append(name)
    return {f"{PLANNED}{1 / candidates[name].operations:.2f}x": name for name in chosen}
