"""Flux ControlNet checkpoints: refusals, and the work and insertion points of supported ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from diffusers import FluxControlNetModel
from safetensors.numpy import save_file

from models.checkpoint.folder import CheckpointError
from models.control.checkpoint import kind_of, load_controls
from models.flow.joint_control import by_interval
from models.flux.config import FluxConfig
from models.flux.control_checkpoint import controls_of, read_files
from models.flux.kinds import FILL, PLAIN
from models.loading.sources import ControlSource, Reading

SIZES: dict[str, Any] = {
    "attention_head_dim": 8,
    "num_attention_heads": 2,
    "axes_dims_rope": (2, 2, 4),
    "joint_attention_dim": 6,
    "pooled_projection_dim": 5,
    "in_channels": 16,
}
FLUX = FluxConfig(num_layers=2, num_single_layers=4, **SIZES)


def written(folder: Path, **changes: Any) -> Path:
    config = {**SIZES, "num_layers": 1, "num_single_layers": 2, "patch_size": 1, **changes}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"conditioning_embedding_channels": 16, "patch_size": 2}, "XLabs"),
        ({"num_layers": 0, "num_single_layers": 0}, "add nothing"),
        ({"num_mode": 0}, "num_mode"),
        ({"in_channels": 32}, "in_channels"),
        ({"num_attention_heads": 3}, "width"),
        ({"joint_attention_dim": 7}, "joint_attention_dim"),
        ({"_class_name": "SD3ControlNetModel", "caption": 1}, "is of class SD3ControlNetModel"),
    ],
    ids=str,
)
def test_unsupported_checkpoint_is_named(
    change: dict[str, Any], named: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=named):
        read_files(FLUX, written(tmp_path, **change))


@pytest.mark.parametrize("changes", [{}, {"num_mode": 5, "guidance_embeds": True}], ids=str)
def test_file_is_the_folder_with_its_config(changes: dict[str, Any], tmp_path: Path) -> None:
    """Published unions are shared under other names, without their config."""
    sizes = {"num_layers": 1, "num_single_layers": 2, **changes}
    FluxControlNetModel(**{**SIZES, **sizes}).save_pretrained(tmp_path)
    written(tmp_path, **sizes)
    file = (tmp_path / "diffusion_pytorch_model.safetensors").rename(tmp_path / "Union.safetensors")
    read, folder = read_files(FLUX, file), read_files(FLUX, tmp_path)
    assert (read.config, read.work, read.kinds) == (folder.config, folder.work, folder.kinds)
    reading = Reading(controls={"edges": ControlSource(str(file), "tile")}, max_controls=1)
    if not changes:
        reading = replace(reading, controls={"edges": ControlSource(str(file))})
    assert load_controls(controls_of(reading, FLUX, PLAIN), ("float32", "float32"), reading)


@pytest.mark.parametrize(
    ("arrays", "named"),
    [
        ({"input_hint_block.0.weight": (4, 3, 3, 3)}, "XLabs"),
        ({"control_model.out.weight": (4, 4)}, "no ControlNet of Flux in diffusers' keys"),
        ({"controlnet_x_embedder.weight": (24, 16)}, "its width is 24"),
        ({"controlnet_x_embedder.weight": (16, 16)}, "would add nothing"),
    ],
)
def test_other_files_are_named(
    arrays: dict[str, tuple[int, ...]], named: str, tmp_path: Path
) -> None:
    file = tmp_path / "net.safetensors"
    save_file({key: np.zeros(shape, np.float32) for key, shape in arrays.items()}, file)
    reading = Reading(controls={"edges": ControlSource(str(file))}, max_controls=1)
    with pytest.raises(CheckpointError, match=rf"controls\.edges: .*{named}"):
        controls_of(reading, FLUX, PLAIN)


def test_tools_of_flux_take_none(tmp_path: Path) -> None:
    reading = Reading(controls={"edges": ControlSource(str(written(tmp_path)))}, max_controls=1)
    with pytest.raises(CheckpointError, match="not Fill"):
        controls_of(reading, FLUX, FILL)


def test_a_unions_kinds_have_names_and_numbers(tmp_path: Path) -> None:
    kinds = read_files(FLUX, written(tmp_path, num_mode=5)).kinds
    assert [kind_of(mode, kinds) for mode in ("canny", "pose", "3")] == [0, 4, 3]
    for mode in ("gray", "5", "edges", None):
        with pytest.raises(ValueError, match="canny, tile, depth, blur, pose"):
            kind_of(mode, kinds)


def test_work_is_about_the_share_of_the_blocks(tmp_path: Path) -> None:
    """Half of the blocks, each followed by a linear layer with 1/12 of a block's work."""
    work = read_files(FLUX, written(tmp_path)).work
    assert work == pytest.approx(0.5 * (1 + 1 / 12), rel=0.02)


@pytest.mark.parametrize(
    ("blocks", "samples", "places"),
    [
        (4, 2, (0, 0, 1, 1)),
        (5, 2, (0, 0, 0, 1, 1)),
        (5, 3, (0, 0, 1, 1, 2)),
        (4, 3, (0, 0, 1, 1)),
        (2, 3, (0, 1)),
        (3, 0, ()),
        (0, 2, ()),
    ],
)
def test_adjacent_blocks_share_control_residuals(
    blocks: int, samples: int, places: tuple[int, ...]
) -> None:
    assert by_interval(blocks, samples) == places
