"""Auditions on a slice of two processes: images stop at a step and resume from their states."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from models.interface.pipeline import generate
from service.jobs.model.job import STOP_AT_STEP
from tests.families.suite import loaded
from tests.workers.multihost.test_hires import run
from tests.workers.multihost.tiny import CFG, asked, assert_same, made


@pytest.mark.timeout(900)  # two processes start, and compile
def test_a_slice_of_two_processes_finishes_its_drafts(tmp_path: Path) -> None:
    """The images equal those of one device without a stop."""
    checkpoint = made("sdxl", tmp_path / "checkpoint")
    requests = [asked("sdxl", {"seed": seed, "num_inference_steps": 4}) for seed in (1, 2)]
    stopped = [
        {**request, STOP_AT_STEP: stop} for request, stop in zip(requests, (1, 3), strict=True)
    ]
    model = {"source": str(checkpoint), "dtype": "float32"}
    pool = {"model": "sdxl", "slots": 1, "mesh": CFG}
    case = {"model": model, "pool": pool, "requests": stopped}
    (tmp_path / "cases.json").write_text(json.dumps({"sdxl": case}))
    run(tmp_path)
    pipeline = loaded("sdxl", checkpoint, "float32")
    for pixels, request in zip(np.load(tmp_path / "sdxl.npz").values(), requests, strict=True):
        assert_same(pixels, generate(pipeline, {**pipeline.spec.defaults, **request}, {}))
