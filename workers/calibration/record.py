"""Recording of the residual of the blocks in each step of exactly generated images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from models.interface.pipeline import Fields, PyTree
from models.spec.quality_presets import Quality
from models.spec.step_plan import PlannedCache
from workers.calibration.drawing import CACHE, ImageGenerator
from workers.calibration.search import StepRecording

MAX_TOKENS = 1024
"""Maximum number of a residual's tokens to record, evenly spaced: enough for inner products."""


def every_step_whole(steps: int) -> Quality:
    """Return the preset that stores residuals and skips no step."""
    plan = PlannedCache(kind="planned", steps=steps, whole=tuple(range(steps)))
    return Quality(step_cache=plan)


def record(generator: ImageGenerator, requests: Sequence[Fields]) -> StepRecording:
    """Generate requests whose preset is `every_step_whole`, and record their steps."""
    watches = [_Watch(generator) for _ in requests]
    for watch, fields in zip(watches, requests, strict=True):
        generator(fields, watch)
    return StepRecording(
        np.stack([watch.products for watch in watches]),
        np.stack([watch.moves for watch in watches]),
    )


class _Watch:
    """Observer that collects one image's block residuals and latents, step by step."""

    def __init__(self, generator: ImageGenerator) -> None:
        self._generator = generator
        self._residuals: list[np.ndarray] = []
        self._latents: list[np.ndarray] = []

    def __call__(self, state: PyTree) -> None:
        residual = state[CACHE]["residual"]
        chosen = residual[:, :: -(-residual.shape[1] // MAX_TOKENS)]
        self._latents.append(self._generator.fetch(state["latents"]))
        if len(self._latents) > 1:
            self._residuals.append(self._generator.fetch(chosen).ravel())

    @property
    def products(self) -> np.ndarray:
        """Inner products of all pairs of steps' residuals."""
        residuals = np.stack(self._residuals).astype(np.float64)
        return residuals @ residuals.T

    @property
    def moves(self) -> np.ndarray:
        """Norm of each step's change of the latents."""
        return np.array([np.linalg.norm(step) for step in np.diff(np.stack(self._latents), axis=0)])
