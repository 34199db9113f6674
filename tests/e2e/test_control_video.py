"""Control videos through a running system, from files on the command line to output frames."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from models import registry
from models.interface.pipeline import generate as drawn
from tests import coarse
from tests.e2e.conftest import Files
from tests.e2e.system import System
from tests.e2e.test_videos import generate
from tests.families.suite.wan import CONTROL

pytestmark = pytest.mark.timeout(900)  # seconds, for the system's start

FILES = {
    "--control-video": "control_video",
    "--mask-video": "mask_video",
    "--reference-image": "reference_images.0",
}
LEVELS = 2
"""Tolerance between programs compiled with different flags."""


def test_uploaded_control_video_reaches_the_worker(
    system: System, folders: Files, tmp_path: Path
) -> None:
    options: list[str] = []
    for option, path in FILES.items():
        (tmp_path / path).write_bytes(CONTROL[path])
        options += [option, str(tmp_path / path)]
    frames = generate(
        system,
        *("--model", "vace", "--seed", "3", *options),
        *("--conditioning-scale", "0.7", "-o", str(tmp_path / "frames")),
    )
    output = np.stack([np.asarray(Image.open(frame)) for frame in frames]).astype(int)
    pipeline = registry.load("vace", str(folders["vace"]), "float32", {})
    fields = {**pipeline.spec.defaults, "prompt": "a star", "seed": 3, "conditioning_scale": [0.7]}
    sent = {path: CONTROL[path] for path in FILES.values()}
    with coarse.compiled():
        expected, plain = (drawn(pipeline, fields, files) for files in (sent, {}))
    assert output.shape == expected.shape == (5, 48, 32, 3)
    assert np.abs(output - expected).max() <= LEVELS
    assert np.abs(output - plain).max() > 10 * LEVELS
