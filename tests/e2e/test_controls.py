"""A ControlNet beside SDXL, from the settings to diffusers' own image over HTTP."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from tests import coarse
from tests.e2e.system import DEADLINE_S, System
from tests.families.suite import EVERY

ENTRY = EVERY["sdxl-controlnet"]
MOST_LEVELS = 2
SHOWS = 1.0
"""Levels, in the mean, by which controls change an image at least."""
REQUEST = {**ENTRY.request, "height": 56}
BODY = {name: value for name, value in REQUEST.items() if name != "control"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ENTRY.make(tmp_path_factory.mktemp("checkpoint") / "sdxl")


@pytest.fixture(scope="module")
def system(folder: Path, state: Path) -> Iterator[System]:
    controls = {name: str(folder / ENTRY.controls[name].source) for name in ("edges", "depth")}
    model = {"source": str(folder), "dtype": "float32", "controls": controls, "max_controls": 2}
    given = {
        "ATELIER_MODELS": json.dumps({"controlled": model}),
        "ATELIER_POOLS": json.dumps({"controlled": {"model": "controlled", "slots": 1}}),
        "XLA_FLAGS": coarse.FLAGS,
    }
    running = System(state, **given)
    yield running
    running.close()


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_a_request_with_controls_draws_what_diffusers_draws(system: System, folder: Path) -> None:
    entries = [
        {**entry, "image": base64.b64encode(ENTRY.images[f"control.{index}.image"]).decode()}
        for index, entry in enumerate(REQUEST["control"])
    ]
    controlled, plain = (drawn(system, {**BODY, "control": these}) for these in (entries, []))
    assert np.abs(controlled - ENTRY.reference(folder, REQUEST)).max() <= MOST_LEVELS
    assert np.abs(controlled - plain).mean() > SHOWS


@pytest.mark.parametrize(
    ("change", "field"),
    [({"name": "pose"}, "control.0.name"), ({"image": "none"}, "control.0.image")],
)
def test_a_control_that_cannot_be_is_refused_by_its_field(
    system: System, change: dict[str, Any], field: str
) -> None:
    image = base64.b64encode(ENTRY.images["control.0.image"]).decode()
    answer = asked(system, {**BODY, "control": [{"name": "edges", "image": image, **change}]})
    assert answer.status_code == 422 and field in answer.text, answer.text


def drawn(system: System, body: dict[str, Any]) -> np.ndarray:
    answer = asked(system, body)
    assert answer.status_code == 200, answer.text
    with Image.open(io.BytesIO(answer.content)) as picture:
        return np.asarray(picture.convert("RGB"), np.int16)


def asked(system: System, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(
        f"{system.url}/v1/generate",
        json={"model": "controlled", **body},
        headers={"Accept": "image/png"},
        timeout=DEADLINE_S,
        trust_env=False,
    )
