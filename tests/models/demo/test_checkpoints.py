"""Shipped checkpoints of the demo models: diffusers loads and runs them, and they are small."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DiffusionPipeline
from safetensors.numpy import load_file

import models.demo
from lab.demo.world import checker, clip_checker

HERE = Path(models.demo.__file__).parent
MAX_BYTES = 20_000_000
CASES = {
    "flux": ("a large red square on the left of a blue background", checker.check),
    "sdxl": ("a large red square on the left of a blue background", checker.check),
    "wan": ("a red circle moves to the right on a blue background", clip_checker.check),
}


def drawn(pipeline: Any, defaults: dict[str, Any], prompt: str) -> np.ndarray:
    """Image that diffusers generates for a prompt with the folder's own defaults, uint8."""
    generator = torch.Generator().manual_seed(1)
    output = pipeline(prompt, generator=generator, output_type="np", **defaults)
    return np.rint(next(iter(output.values()))[0] * 255).astype(np.uint8)


@pytest.mark.parametrize("name", CASES)
def test_diffusers_generates_what_the_prompt_names(name: str) -> None:
    pipeline = DiffusionPipeline.from_pretrained(HERE / name).to(torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    defaults = json.loads((HERE / name / "atelier.json").read_text())["defaults"]
    fps = defaults.pop("fps", None)
    assert (fps is not None) == (name == "wan")  # of the file, not of the pipeline
    prompt, check = CASES[name]
    report = check(drawn(pipeline, defaults, prompt), prompt)
    assert report.correct, report.criteria


@pytest.mark.parametrize("name", CASES)
def test_diffusers_finds_every_weight_and_no_other(name: str) -> None:
    """The checkpoint has exactly the weights of diffusers' networks, which would otherwise start
    with random weights and only log a warning."""
    pipeline = DiffusionPipeline.from_pretrained(HERE / name)
    for part, file in ((path.parent.name, path) for path in HERE.glob(f"{name}/*/diff*")):
        stored = {key: tuple(value.shape) for key, value in load_file(file).items()}
        wanted = getattr(pipeline, part).state_dict()
        assert stored == {key: tuple(value.shape) for key, value in wanted.items()}


@pytest.mark.parametrize("name", CASES)
def test_the_folder_is_small_and_has_no_pickle(name: str) -> None:
    folder = HERE / name
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MAX_BYTES
    assert {path.suffix for path in files} <= {".json", ".txt", ".model", ".safetensors"}
