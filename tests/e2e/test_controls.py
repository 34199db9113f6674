"""ControlNets with SDXL over HTTP generate diffusers' image."""

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

ENTRY = EVERY["sdxl-controlnet"]
MAX_LEVELS = 2
SHOWS = 1.0
"""Minimum mean difference, in levels of 255, that controls must cause in an image."""
REQUEST = {**ENTRY.request, "height": 56}
BODY = {name: value for name, value in REQUEST.items() if name != "control"}


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_controlled_request_matches_diffusers(system: System, folders: Files) -> None:
    entries = [
        {**entry, "image": base64.b64encode(ENTRY.images[f"control.{index}.image"]).decode()}
        for index, entry in enumerate(REQUEST["control"])
    ]
    controlled, plain = (drawn(system, {**BODY, "control": controls}) for controls in (entries, []))
    assert np.abs(controlled - ENTRY.reference(folders["controlled"], REQUEST)).max() <= MAX_LEVELS
    assert np.abs(controlled - plain).mean() > SHOWS


@pytest.mark.parametrize(
    ("change", "field"),
    [({"name": "pose"}, "control.0.name"), ({"image": "none"}, "control.0.image")],
)
def test_a_control_that_cannot_be_is_refused_by_its_field(
    system: System, change: dict[str, Any], field: str
) -> None:
    image = base64.b64encode(ENTRY.images["control.0.image"]).decode()
    response = asked(system, {**BODY, "control": [{"name": "edges", "image": image, **change}]})
    assert response.status_code == 422 and field in response.text, response.text


def drawn(system: System, body: dict[str, Any]) -> np.ndarray:
    response = asked(system, body)
    assert response.status_code == 200, response.text
    with Image.open(io.BytesIO(response.content)) as image:
        return np.asarray(image.convert("RGB"), np.int16)


def asked(system: System, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(
        f"{system.url}/v1/generate",
        json={"model": "controlled", **body},
        headers={"Accept": "image/png"},
        timeout=END_S,
        trust_env=False,
    )
