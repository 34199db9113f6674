"""Sources of LTX-2's latent upsampler, and its full size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from models import published, registry
from models.checkpoint.folder import CheckpointError
from models.loading.sources import SHAPES
from tests.parity.tiny_ltx import latent_upsampler

ODD = {"in_channels": 128, "mid_channels": 32, "num_blocks_per_stage": 1}


def loaded(folder: Path, upsampler: Path | None = None, name: str = "ltx-2.3") -> Any:
    options = {} if upsampler is None else {"latent_upsampler": str(upsampler)}
    return registry.load(name, str(folder), "bfloat16", {}, reader=SHAPES, **options)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    published.write("ltx-2.3", tmp_path / "model")
    return tmp_path / "model"


def test_a_checkpoint_without_one_has_no_second_stage(folder: Path) -> None:
    pipeline = loaded(folder)
    assert pipeline.weights.latent_upsampler is None
    assert "hires" not in pipeline.spec.fields


def test_the_checkpoints_own_in_full_size(folder: Path) -> None:
    """The published upsampler has the defaults of diffusers' network."""
    (folder / "latent_upsampler").mkdir()
    (folder / "latent_upsampler" / "config.json").write_text("{}")
    pipeline = loaded(folder)
    leaves = jax.tree.leaves(pipeline.weights.latent_upsampler)
    count = sum(leaf.size for leaf in leaves)
    assert (round(count / 1e9, 1), round(2 * count / 2**30, 1)) == (0.5, 0.9)
    assert "hires" in pipeline.spec.fields
    assert pipeline.spec.hires_upscalers == ("latent_upsampler",)
    enlarger = pipeline.spec.enlargers["latent_upsampler"]
    assert (enlarger.scale, enlarger.second["num_inference_steps"]) == (2.0, 3)
    assert enlarger.second["stg_scale"] == 0


@pytest.mark.parametrize("place", [".", "latent_upsampler"])
def test_a_folder_of_the_settings(place: str, folder: Path, tmp_path: Path) -> None:
    config = tmp_path / "beside" / place / "config.json"
    config.parent.mkdir(parents=True)
    config.write_text(json.dumps({**ODD, "rational_spatial_scale": 1.5, "spatial_scale": 2.0}))
    assert loaded(folder, tmp_path / "beside").spec.enlargers["latent_upsampler"].scale == 1.5


@pytest.mark.parametrize(
    ("more", "scale"),
    [
        ({}, 2.0),
        ({"use_rational_resampler": False}, 2.0),
        ({"rational_spatial_scale": 1.5}, 1.5),
    ],
    ids=str,
)
def test_a_file_without_a_config(
    more: dict[str, Any], scale: float, folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "upscaler.safetensors"
    latent_upsampler(3, **ODD, **more).save_pretrained(tmp_path / "net")
    save_file(load_file(tmp_path / "net" / "diffusion_pytorch_model.safetensors"), file)
    pipeline = loaded(folder, file)
    config = pipeline.upsampler
    assert (config.mid_channels, config.num_blocks_per_stage) == (32, 1)
    assert pipeline.spec.enlargers["latent_upsampler"].scale == scale
    assert pipeline.spec.fingerprint != loaded(folder).spec.fingerprint


def test_invalid_files_are_rejected(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.safetensors"
    save_file({"body.weight": np.zeros((3, 3), np.float32)}, other)
    with pytest.raises(CheckpointError, match="no network that enlarges rows and columns"):
        loaded(folder, other)
    with pytest.raises(CheckpointError, match=r"no latent_upsampler/config\.json"):
        loaded(folder, tmp_path)
    narrow = tmp_path / "narrow"
    narrow.mkdir()
    (narrow / "config.json").write_text(json.dumps({**ODD, "in_channels": 64}))
    with pytest.raises(CheckpointError, match="latent_upsampler in_channels is 64"):
        loaded(folder, narrow)
    flux = tmp_path / "flux"
    published.write("flux-schnell", flux)
    with pytest.raises(CheckpointError, match="latent_upsampler is set, but FluxPipeline"):
        loaded(flux, narrow, "flux-schnell")
