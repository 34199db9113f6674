"""Images of one device compared with diffusers, and of every layout compared with one device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.interface.pipeline import Pipeline, split_sound
from tests.families.suite import EVERY, VARIANTS, loaded
from tests.parallel.layouts import denoise, layout

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

LATENTS = 1e-4
"""Relative tolerance of each step, for sums in another order."""
MAX_LEVELS, MIN_DB = 2, 60.0

LAYOUTS: dict[str, dict[str, Any]] = {
    "data 2": {"data": 2},
    "cfg 2": {"cfg": 2},
    "ulysses 4": {"context": 4},
    "ring 4": {"context": 4, "ring": 4},
    "ring 2 of ulysses 4": {"context": 8, "ring": 2},
    "tensor 2": {"tensor": 2},
    "fsdp 8": {"fsdp": 8},
    "cfg 2, context 4": {"cfg": 2, "context": 4},
    "fsdp 2, cfg 2, tensor 2": {"fsdp": 2, "cfg": 2, "tensor": 2},
    "cfg 2, ring 2, tensor 2": {"cfg": 2, "context": 2, "ring": 2, "tensor": 2},
    "data 2, fsdp 2, ulysses 2": {"data": 2, "fsdp": 2, "context": 2},
}
OF_VARIANTS = ("ring 2 of ulysses 4", "cfg 2, ring 2, tensor 2", "data 2, fsdp 2, ulysses 2")
"""Layouts that together have every axis: a variant's network is tested as its family's."""


def is_left_out(family: str, name: str) -> bool:
    """Return whether a layout is not tested with an entry. `conftest.py` calls this."""
    return family in VARIANTS and name not in OF_VARIANTS


@pytest.fixture(scope="module")
def pipeline(family: str, folder: Path) -> Pipeline:
    return loaded(family, folder, "float32")


@pytest.fixture(scope="module")
def drawing(pipeline: Pipeline, family: str) -> tuple[Any, list[np.ndarray], np.ndarray]:
    """Return one device's request, latents after encoding and after each step, and pixels."""
    prepared = pipeline.prepare(
        {**pipeline.spec.defaults, **EVERY[family].request}, EVERY[family].images
    )
    return prepared, *drawn(pipeline, prepared, layout())


def drawn(pipeline: Pipeline, prepared: Any, by: Any) -> tuple[list[np.ndarray], np.ndarray]:
    *rows, pixels = denoise(pipeline, prepared, by)
    return [np.asarray(row["latents"]) for row in rows], np.asarray(split_sound(pixels)[0])


def test_variants_are_held_to_every_axis() -> None:
    axes = {axis for layout in LAYOUTS.values() for axis in layout}
    assert axes == {axis for name in OF_VARIANTS for axis in LAYOUTS[name]}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layout_matches_one_device(
    name: str, pipeline: Pipeline, drawing: tuple[Any, list[np.ndarray], np.ndarray]
) -> None:
    prepared, steps, pixels = drawing
    actual_steps, actual = drawn(pipeline, prepared, layout(**LAYOUTS[name]))
    for actual_latents, latents in zip(actual_steps, steps, strict=True):
        gap = np.abs(actual_latents - latents).max() / np.abs(latents).max()
        assert gap < LATENTS, f"{gap:.1e}"
    assert_alike(actual, pixels)


def test_image_matches_diffusers(
    family: str, folder: Path, drawing: tuple[Any, list[np.ndarray], np.ndarray]
) -> None:
    """Compare with the entry's reference. tests/parity has many more cases."""
    entry = EVERY[family]
    assert_alike(drawing[2], entry.reference(folder, entry.request))


@pytest.mark.parametrize("spoiled", ["prompt", "seed"])
def test_tolerances_distinguish_images_of_other_requests(
    family: str, folder: Path, drawing: tuple[Any, list[np.ndarray], np.ndarray], spoiled: str
) -> None:
    """Prove that the tolerances distinguish images."""
    entry = EVERY[family]
    other = entry.request | {spoiled: {"prompt": "a blue star", "seed": 4}[spoiled]}
    with pytest.raises(AssertionError):
        assert_alike(drawing[2], entry.reference(folder, other))


def assert_alike(actual: np.ndarray, expected: np.ndarray) -> None:
    """Check that two images are equal but for rounding."""
    assert actual.shape == expected.shape
    levels = np.abs(actual.astype(int) - expected)
    assert levels.max() <= MAX_LEVELS
    noise = np.mean(np.square(levels))
    assert noise == 0 or 10 * np.log10(255**2 / noise) >= MIN_DB
