"""Demo models, sketched without their weights."""

from __future__ import annotations

from pathlib import Path

import pytest

import models.demo
from workers.plan.model import sketch_of
from workers.plan.trace import Sketch

DEMO = Path(models.demo.__file__).parent


@pytest.fixture(scope="session")
def flux() -> Sketch:
    """Return the demo's Flux at its default size, with a negative prompt: two passes per step."""
    return sketch_of(str(DEMO / "flux"), "float32", {})


@pytest.fixture(scope="session")
def unguided() -> Sketch:
    return sketch_of(str(DEMO / "wan"), "float32", {"guidance_scale": 1.0})
