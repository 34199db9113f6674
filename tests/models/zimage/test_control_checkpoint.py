"""Z-Image ControlNet checkpoints: refusals, versions of single files, and the work of each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
from diffusers import ZImageControlNetModel
from flax import nnx
from safetensors.torch import load_file, save_file

from models.checkpoint.folder import CheckpointError
from models.control.checkpoint import load_controls
from models.loading.sources import ControlSource, Reading
from models.zimage.config import OWN_REFINER, SAME_LAYERS, ZImageConfig
from models.zimage.control_checkpoint import controls_of, read_files

Z_IMAGE = ZImageConfig(n_layers=6, dim=24, n_heads=2, n_kv_heads=2, axes_dims=(4, 4, 4))
SIZES: dict[str, Any] = {
    **{"dim": 24, "n_heads": 2, "n_kv_heads": 2, "control_in_dim": 16},
    **{"control_layers_places": [0, 3], "control_refiner_layers_places": [0, 1]},
}
VERSIONS: dict[str, tuple[dict[str, Any], float]] = {
    "1.0": ({"control_refiner_layers_places": None}, 2 + 2 + 2 + 3 / 12),
    "2.0": ({"add_control_noise_refiner": SAME_LAYERS, "control_in_dim": 33}, 2 + 2 * (2 + 3 / 12)),
    "2.1": ({"add_control_noise_refiner": OWN_REFINER, "control_in_dim": 33}, 2 + 4 + 6 / 12),
    "2.1 lite": (
        {
            **{"add_control_noise_refiner": OWN_REFINER, "control_in_dim": 33},
            "control_layers_places": [0, 2, 4],
        },
        2 + 5 + 7 / 12,
    ),
}
"""Config overrides of each version, and the blocks that a step runs, with output layers."""


def written(folder: Path, **changes: Any) -> Path:
    (folder / "config.json").write_text(json.dumps({**SIZES, **changes}))
    return folder


def reading_of(source: Path | str) -> Reading:
    return Reading(controls={"edges": ControlSource(str(source))}, max_controls=1)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"dim": 48}, "dim"),
        ({"n_heads": 4, "n_kv_heads": 4}, "n_heads"),
        ({"control_in_dim": 8}, "control_in_dim"),
        ({"control_layers_places": []}, "control_layers_places"),
        ({"control_layers_places": [0, 6]}, "numbers of layers below 6"),
        ({"control_layers_places": [0, 4, 2]}, "ascending"),
        ({"add_control_noise_refiner": "both"}, "add_control_noise_refiner 'both'"),
        (
            {"add_control_noise_refiner": OWN_REFINER, "control_refiner_layers_places": [2]},
            "control_refiner_layers_places",
        ),
        ({"_class_name": "FluxControlNetModel"}, "choose one that was trained for Z-Image"),
    ],
    ids=str,
)
def test_unsupported_checkpoint_is_named(
    change: dict[str, Any], named: str, tmp_path: Path
) -> None:
    reading = reading_of(written(tmp_path, **change))
    with pytest.raises(CheckpointError, match=rf"controls\.edges: .*{named}"):
        controls_of(reading, Z_IMAGE)


def test_other_file_is_named(tmp_path: Path) -> None:
    save_file({"x": torch.ones(2)}, tmp_path / "other.safetensors")
    with pytest.raises(CheckpointError, match=r"controls\.edges: .*no ControlNet of Z-Image"):
        controls_of(reading_of(tmp_path / "other.safetensors"), Z_IMAGE)


def in_comfys_names(arrays: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a published file as ComfyUI's tools write it: their layer names, and joined heads."""
    joined = {}
    for key, array in arrays.items():
        if key.endswith("attention.to_q.weight"):
            heads = [arrays[key.replace("to_q", f"to_{letter}")] for letter in "qkv"]
            joined[key.replace("to_q", "qkv")] = torch.cat(heads)
        elif ".attention.to_k." not in key and ".attention.to_v." not in key:
            joined[key] = array
    new = {"all_x_embedder.2-1": "x_embedder", "to_out.0": "out"}
    new |= {f"attention.norm_{letter}": f"attention.{letter}_norm" for letter in "qk"}
    for old, name in new.items():
        joined = {key.replace(old, name): array for key, array in joined.items()}
    return joined


@pytest.mark.parametrize(
    ("changes", "blocks", "comfy"),
    [*((*version, False) for version in VERSIONS.values()), (*VERSIONS["2.1"], True)],
    ids=[*VERSIONS, "2.1 of ComfyUI"],
)
def test_published_file_is_the_folder_in_its_version(
    changes: dict[str, Any], blocks: float, comfy: bool, tmp_path: Path
) -> None:
    """Files have no config. Those of 2.0 have a refiner whose output layers are zero."""
    torch.manual_seed(3)
    config = {**SIZES, **changes}
    network = ZImageControlNetModel(**config)
    for parameter in network.parameters():
        parameter.data.normal_()
    network.save_pretrained(tmp_path / "folder")
    arrays = load_file(tmp_path / "folder" / "diffusion_pytorch_model.safetensors")
    if config.get("add_control_noise_refiner") == SAME_LAYERS:
        other = ZImageControlNetModel(**{**config, "add_control_noise_refiner": OWN_REFINER})
        unused = other.state_dict().items()
        arrays |= {name: x for name, x in unused if name.startswith("control_noise_refiner.")}
    save_file(in_comfys_names(arrays) if comfy else arrays, tmp_path / "net.safetensors")
    folder, file = (read_files(Z_IMAGE, tmp_path / name) for name in ("folder", "net.safetensors"))
    if changes.get("control_refiner_layers_places", ()) is not None:
        assert file.config == folder.config
    assert file.work == folder.work == pytest.approx(blocks / 8)
    both = []
    for name in ("folder", "net.safetensors"):
        reading = reading_of(tmp_path / name)
        loaded = load_controls(controls_of(reading, Z_IMAGE), ("float32", "float32"), reading)
        both.append(jax.tree.leaves(nnx.state(loaded)))
    assert len(both[0]) == len(both[1]) > 0
    for a, b in zip(*both, strict=True):
        np.testing.assert_array_equal(a, b)
