"""FLUX.2 klein over HTTP edits images like diffusers."""

from __future__ import annotations

import base64
import io
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from tests.e2e.conftest import Files
from tests.e2e.endpoints import END_S
from tests.e2e.system import System
from tests.families.suite import EVERY

pytestmark = pytest.mark.timeout(900)  # seconds, for the system's start

ENTRY = EVERY["flux2-edit"]
MAX_LEVELS = 2
SHOWS = 1.0
"""Minimum mean difference, in levels of 255, that a reference must cause in an image."""
IMAGE, FURTHER = (base64.b64encode(file).decode() for file in ENTRY.images.values())


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_edit_matches_diffusers(system: System, folders: Files) -> None:
    both = drawn(system, ENTRY.request, image=IMAGE, reference_images=[FURTHER])
    assert np.abs(both - ENTRY.reference(folders["klein"], ENTRY.request)).max() <= MAX_LEVELS
    assert np.abs(both - drawn(system, ENTRY.request, image=IMAGE)).mean() > SHOWS


def test_references_without_an_image_are_used(system: System) -> None:
    references_only = drawn(system, ENTRY.request, reference_images=[IMAGE, FURTHER])
    both = drawn(system, ENTRY.request, image=IMAGE, reference_images=[FURTHER])
    np.testing.assert_array_equal(references_only, both)


def test_an_edit_has_the_size_of_its_image(system: System) -> None:
    sizes = ("width", "height")
    request = {name: value for name, value in ENTRY.request.items() if name not in sizes}
    assert drawn(system, request, image=IMAGE).shape == (64, 72, 3)


def test_too_many_references_are_refused_by_name(system: System) -> None:
    answer = asked(system, {**ENTRY.request, "reference_images": [IMAGE] * 4})
    assert answer.status_code == 422 and "the model accepts 3 at most" in answer.text


def drawn(system: System, request: dict[str, Any], **images: Any) -> np.ndarray:
    response = asked(system, {**request, **images})
    assert response.status_code == 200, response.text
    with Image.open(io.BytesIO(response.content)) as image:
        return np.asarray(image.convert("RGB"), np.int16)


def asked(system: System, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(
        f"{system.url}/v1/generate",
        json={"model": "klein", **body},
        headers={"Accept": "image/png"},
        timeout=END_S,
        trust_env=False,
    )
