"""Flux ControlNet checkpoints: refusals, and the work and insertion points of supported ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from models.checkpoint.folder import CheckpointError
from models.control.checkpoint import kind_of
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


@pytest.mark.parametrize("source", ["net.safetensors", "owner/name:net.safetensors"])
def test_single_file_is_rejected_before_it_is_fetched(source: str, tmp_path: Path) -> None:
    file = tmp_path / "net.safetensors"
    file.write_bytes(b"")
    place = source if ":" in source else str(file)
    reading = Reading(controls={"edges": ControlSource(place)}, max_controls=1)
    with pytest.raises(CheckpointError, match=r"controls\.edges: .*folder or hub id"):
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
