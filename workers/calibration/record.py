"""StepRecording of what the blocks add in each step of exactly drawn images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from models.interface.pipeline import Fields, PyTree
from models.spec.quality_presets import Quality
from models.spec.step_plan import PlannedCache
from workers.calibration.drawing import CACHE, Drawer
from workers.calibration.search import StepRecording

MAX_TOKENS = 1024
"""Tokens of a residual that are recorded, evenly chosen: inner products need no more."""


def every_step_whole(steps: int) -> Quality:
    """Return the preset that keeps residuals and leaves nothing out."""
    plan = PlannedCache(kind="planned", steps=steps, whole=tuple(range(steps)))
    return Quality(step_cache=plan)


def record(drawer: Drawer, requests: Sequence[Fields]) -> StepRecording:
    """Draw requests whose preset is `every_step_whole`, and record their steps."""
    found = [_Watch(drawer) for _ in requests]
    for watch, fields in zip(found, requests, strict=True):
        drawer(fields, watch)
    return StepRecording(
        np.stack([watch.products for watch in found]), np.stack([watch.moves for watch in found])
    )


class _Watch:
    """Residuals and latents of one image, step by step."""

    def __init__(self, drawer: Drawer) -> None:
        self._drawer = drawer
        self._residuals: list[np.ndarray] = []
        self._latents: list[np.ndarray] = []

    def __call__(self, state: PyTree) -> None:
        residual = state[CACHE]["residual"]
        chosen = residual[:, :: -(-residual.shape[1] // MAX_TOKENS)]
        self._latents.append(self._drawer.fetch(state["latents"]))
        if len(self._latents) > 1:
            self._residuals.append(self._drawer.fetch(chosen).ravel())

    @property
    def products(self) -> np.ndarray:
        """Inner products of all steps' residuals."""
        residuals = np.stack(self._residuals).astype(np.float64)
        return residuals @ residuals.T

    @property
    def moves(self) -> np.ndarray:
        """Norm of what each step added to the latents."""
        return np.array([np.linalg.norm(step) for step in np.diff(np.stack(self._latents), axis=0)])
