"""The shipped folder is a checkpoint that diffusers itself loads, and small."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import FluxPipeline
from flax import nnx

import models.demo
from models.demo.checker import check
from models.demo.configs import FLUX
from models.demo.export import DEFAULTS, tensors
from models.flux.transformer import FluxTransformer
from models.flux.weights import RENAMES

FOLDER = Path(models.demo.__file__).parent / "flux"
MAX_BYTES = 20_000_000


@pytest.fixture(scope="module")
def pipeline() -> FluxPipeline:
    pipeline = FluxPipeline.from_pretrained(FOLDER).to(torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


@pytest.mark.parametrize(
    "prompt",
    [
        "a large red circle on the left of a blue background",
        "a large green square on the right of a white background",
    ],
)
def test_diffusers_draws_what_the_prompt_names(pipeline: FluxPipeline, prompt: str) -> None:
    defaults = json.loads((FOLDER / "atelier.json").read_text())["defaults"]
    picture = pipeline(
        prompt, generator=torch.Generator().manual_seed(1), output_type="np", **defaults
    ).images[0]
    report = check(np.rint(picture * 255).astype(np.uint8), prompt)
    assert report.correct, report.criteria


def test_the_folder_is_small_and_has_no_pickle() -> None:
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MAX_BYTES
    assert {path.suffix for path in files} <= {".json", ".txt", ".model", ".safetensors"}
    assert json.loads((FOLDER / "atelier.json").read_text()) == {"defaults": DEFAULTS}


def test_every_parameter_gets_a_name_of_its_own() -> None:
    config = replace(FLUX, num_layers=1, num_single_layers=2, num_attention_heads=1)
    module = FluxTransformer(config, rngs=nnx.Rngs(0))
    stored = tensors(module, RENAMES)
    kernel = module.single_blocks.up.kernel[...][1]
    assert np.array_equal(
        stored["single_transformer_blocks.1.proj_mlp.weight"], np.asarray(kernel, np.float16).T
    )
    count = sum(array.size for array in stored.values())
    assert count == sum(leaf.size for _, leaf in nnx.to_flat_state(nnx.state(module)))
