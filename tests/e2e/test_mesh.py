"""A system whose pools own slices of several devices, as its user has it."""

from __future__ import annotations

import io

import httpx
import numpy as np
import pytest
from PIL import Image

from tests.e2e.conftest import Start
from tests.e2e.doors import END_S
from tests.e2e.system import System

pytestmark = pytest.mark.timeout(900)  # seconds: its start

BODY = {"model": "tiny", "prompt": "a red circle", "seed": 3}
PIXEL_TOLERANCE = 2
"""Of 255: layouts differ by the order of their sums, and so by rounding."""


def picture(system: System) -> np.ndarray:
    answer = httpx.post(
        f"{system.url}/v1/generate", json=BODY, headers={"Accept": "image/png"}, timeout=END_S
    )
    assert answer.status_code == 200, answer.text
    return np.asarray(Image.open(io.BytesIO(answer.content))).astype(int)


def test_slices_of_one_machine_draw_the_picture_of_one_device(system: System, start: Start) -> None:
    expected = picture(system)
    several = start("--host-devices", "8", "--mesh", "fsdp=2,context=-1", "--pools", "2")
    assert np.abs(picture(several) - expected).max() <= PIXEL_TOLERANCE
    said = "\n".join(several.lines)
    assert said.count("on 4 x cpu: fsdp 2 · context 2") == 2, said
    commands = [line for line in said.splitlines() if "tiny.0" in line or "tiny.1" in line]
    assert {line.split()[0] for line in commands} == {"tiny.0", "tiny.1"}


def test_a_mesh_that_does_not_fit_stops_the_start_with_the_numbers(start: Start) -> None:
    system = start("--host-devices", "4", "--mesh", "context=3,data=-1")
    assert system.wait() == 78
    system.wait_for(r"pools\.tiny: ici context 3 · data -1: 3 does not divide 4 devices")
