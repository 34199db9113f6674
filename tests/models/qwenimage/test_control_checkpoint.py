"""Qwen-Image ControlNet checkpoints: refusals, and the work of supported ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from models.checkpoint.folder import CheckpointError
from models.loading.sources import ControlSource, Reading
from models.qwenimage.config import QwenImageConfig
from models.qwenimage.control_checkpoint import controls_of, read_files
from models.qwenimage.edit.spec import EDITING
from models.qwenimage.spec import GENERATION

SIZES: dict[str, Any] = {
    "attention_head_dim": 8,
    "num_attention_heads": 2,
    "axes_dims_rope": (2, 2, 4),
    "joint_attention_dim": 6,
    "in_channels": 16,
    "out_channels": 4,
}
QWEN_IMAGE = QwenImageConfig(num_layers=4, **SIZES)


def written(folder: Path, **changes: Any) -> Path:
    (folder / "config.json").write_text(json.dumps({**SIZES, "num_layers": 2, **changes}))
    return folder


def reading_of(source: Path | str) -> Reading:
    return Reading(controls={"edges": ControlSource(str(source))}, max_controls=1)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"extra_condition_channels": 4}, "choose one that reads only an image"),
        ({"in_channels": 32, "out_channels": 8}, "in_channels"),
        ({"num_attention_heads": 3}, "width"),
        ({"joint_attention_dim": 7}, "joint_attention_dim"),
        ({"num_layers": 0}, "num_layers"),
        ({"_class_name": "FluxControlNetModel"}, "choose one that was trained for Qwen-Image"),
    ],
    ids=str,
)
def test_unsupported_checkpoint_is_named(
    change: dict[str, Any], named: str, tmp_path: Path
) -> None:
    reading = reading_of(written(tmp_path, **change))
    with pytest.raises(CheckpointError, match=rf"controls\.edges: .*{named}"):
        controls_of(reading, QWEN_IMAGE, GENERATION)


def test_single_file_is_rejected_before_it_is_fetched() -> None:
    with pytest.raises(CheckpointError, match=r"controls\.edges: .*folder or hub id"):
        controls_of(reading_of("owner/name:net.safetensors"), QWEN_IMAGE, GENERATION)


def test_edit_takes_none(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not Edit; remove them"):
        controls_of(reading_of(written(tmp_path)), QWEN_IMAGE, EDITING)


def test_work_is_about_the_share_of_the_blocks(tmp_path: Path) -> None:
    """Half of the blocks, each followed by a linear layer with 1/12 of a block's work."""
    work = read_files(QWEN_IMAGE, written(tmp_path)).work
    assert work == pytest.approx(0.5 * (1 + 1 / 12), rel=0.03)
