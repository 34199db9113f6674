"""Selection of the measured candidates that become presets."""

from __future__ import annotations

import numpy as np
import pytest

from models.spec.quality_presets import Quality
from workers.calibration.calibrate import Figures, frontier, promising
from workers.calibration.drawing import GeneratedImage
from workers.media.psnr import psnr_db


def figures(operations: float, *psnr: float) -> Figures:
    return Figures(psnr, operations, operations)


def test_figures_are_against_the_exact_image_of_the_same_request() -> None:
    grey = np.full((4, 4, 3), 100, np.uint8)
    exact = [GeneratedImage(grey, 2.0, 100), GeneratedImage(grey + 1, 2.0, 100)]
    result = Figures.of(
        [GeneratedImage(grey + 5, 1.0, 40), GeneratedImage(grey + 1, 0.5, 60)], exact
    )
    assert result.psnr_db == (pytest.approx(20 * np.log10(255 / 5)), 99.0)
    assert (result.operations, result.time) == (0.5, 0.375)
    preset = result.on(Quality(), 8, "how")
    assert preset.measured is not None and preset.about == "how"
    assert (preset.measured.worst_db, preset.measured.steps, preset.measured.images) == (34.1, 8, 2)
    assert psnr_db(grey, grey) == 99.0


def test_dominated_candidate_is_not_on_the_frontier() -> None:
    candidates = {
        "fast": figures(0.3, 30, 28),
        "beaten": figures(0.4, 40, 27),
        "near": figures(0.5, 45, 40),
        "hardly nearer": figures(0.6, 41, 40.2),
        "slower than exact": figures(1.1, 60, 60),
    }
    assert frontier(candidates) == {"planned-3.33x": "fast", "planned-2.00x": "near"}


def test_equally_fast_candidate_with_lower_psnr_is_dropped() -> None:
    candidates = {"one": figures(0.49, 30.0), "other": figures(0.5, 40.0), "far": figures(0.2, 9.0)}
    assert frontier(candidates) == {"planned-2.00x": "other"}


def test_dominated_candidates_are_excluded_early() -> None:
    candidates = {
        "a": figures(0.2, 30),
        "b": figures(0.3, 29),
        "c": figures(0.4, 25),
        "d": figures(1, 9),
    }
    assert promising(candidates) == ["a", "b"]
