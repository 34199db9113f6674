"""A system whose pools own mesh slices of several devices."""

from __future__ import annotations

import io

import httpx
import numpy as np
import pytest
from PIL import Image

from tests.e2e.conftest import Start
from tests.e2e.endpoints import END_S
from tests.e2e.system import System

pytestmark = pytest.mark.timeout(900)  # seconds, for the system's start

BODY = {"model": "tiny", "prompt": "a red circle", "seed": 3}
PIXEL_TOLERANCE = 2
"""Levels of 255. Layouts sum in different orders, so they round differently."""


def picture(system: System) -> np.ndarray:
    response = httpx.post(
        f"{system.url}/v1/generate", json=BODY, headers={"Accept": "image/png"}, timeout=END_S
    )
    assert response.status_code == 200, response.text
    return np.asarray(Image.open(io.BytesIO(response.content))).astype(int)


def test_slices_of_one_machine_match_one_device(system: System, start: Start) -> None:
    expected = picture(system)
    several = start("--host-devices", "8", "--mesh", "fsdp=2,context=-1", "--pools", "2")
    assert np.abs(picture(several) - expected).max() <= PIXEL_TOLERANCE
    output = "\n".join(several.lines)
    assert output.count("on 4 x cpu: fsdp 2 · context 2") == 2, output
    commands = [line for line in output.splitlines() if "tiny.0" in line or "tiny.1" in line]
    assert {line.split()[0] for line in commands} == {"tiny.0", "tiny.1"}


def test_a_mesh_that_does_not_fit_stops_the_start_with_the_numbers(start: Start) -> None:
    system = start("--host-devices", "4", "--mesh", "context=3,data=-1")
    assert system.wait() == 78
    system.wait_for(r"pools\.tiny: ici context 3 · data -1: 3 does not divide 4 devices")
