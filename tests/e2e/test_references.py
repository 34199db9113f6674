"""FLUX.2 klein edits images that come over HTTP, as diffusers does."""

from __future__ import annotations

import base64
import io
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from tests.e2e.conftest import Files
from tests.e2e.doors import END_S
from tests.e2e.system import System
from tests.families.suite import EVERY

pytestmark = pytest.mark.timeout(900)  # seconds: its start

ENTRY = EVERY["flux2-edit"]
MOST_LEVELS = 2
SHOWS = 1.0
"""Levels, in the mean, by which a reference changes an image at least."""
IMAGE, FURTHER = (base64.b64encode(file).decode() for file in ENTRY.images.values())


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_an_edit_draws_what_diffusers_draws(system: System, folders: Files) -> None:
    both = drawn(system, ENTRY.request, image=IMAGE, reference_images=[FURTHER])
    assert np.abs(both - ENTRY.reference(folders["klein"], ENTRY.request)).max() <= MOST_LEVELS
    assert np.abs(both - drawn(system, ENTRY.request, image=IMAGE)).mean() > SHOWS


def test_references_without_an_image_are_seen(system: System) -> None:
    alone = drawn(system, ENTRY.request, reference_images=[IMAGE, FURTHER])
    both = drawn(system, ENTRY.request, image=IMAGE, reference_images=[FURTHER])
    np.testing.assert_array_equal(alone, both)


def test_an_edit_has_the_size_of_its_image(system: System) -> None:
    sizes = ("width", "height")
    request = {name: value for name, value in ENTRY.request.items() if name not in sizes}
    assert drawn(system, request, image=IMAGE).shape == (64, 72, 3)


def test_too_many_references_are_refused_by_name(system: System) -> None:
    answer = asked(system, {**ENTRY.request, "reference_images": [IMAGE] * 4})
    assert answer.status_code == 422 and "the model takes 3 at most" in answer.text


def drawn(system: System, request: dict[str, Any], **images: Any) -> np.ndarray:
    answer = asked(system, {**request, **images})
    assert answer.status_code == 200, answer.text
    with Image.open(io.BytesIO(answer.content)) as picture:
        return np.asarray(picture.convert("RGB"), np.int16)


def asked(system: System, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(
        f"{system.url}/v1/generate",
        json={"model": "klein", **body},
        headers={"Accept": "image/png"},
        timeout=END_S,
        trust_env=False,
    )
