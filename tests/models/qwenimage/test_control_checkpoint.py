"""Qwen-Image ControlNet checkpoints: refusals, 8-bit weights, and the work of supported ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from diffusers import QwenImageControlNetModel
from flax import nnx
from safetensors.torch import load_file, save_file

from models.checkpoint.folder import CheckpointError
from models.control.checkpoint import load_controls
from models.loading.sources import ControlSource, Reading
from models.qwenimage.config import QwenImageConfig
from models.qwenimage.control_checkpoint import controls_of, read_files
from models.qwenimage.edit.spec import EDITING
from models.qwenimage.spec import GENERATION
from tests.models.flux.original_writer import in_eight_bits
from tests.parity.tiny_qwenimage import make_control

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


def test_file_is_the_folder_with_its_config(tmp_path: Path) -> None:
    """ComfyUI's copies of published ControlNets have no config."""
    QwenImageControlNetModel(**SIZES, num_layers=2).save_pretrained(tmp_path)
    written(tmp_path)
    file = (tmp_path / "diffusion_pytorch_model.safetensors").rename(tmp_path / "net.safetensors")
    read, folder = read_files(QWEN_IMAGE, file), read_files(QWEN_IMAGE, tmp_path)
    assert (read.config, read.work) == (folder.config, folder.work)
    reading = reading_of(file)
    controls = controls_of(reading, QWEN_IMAGE, GENERATION)
    assert load_controls(controls, ("float32", "float32"), reading)


def test_file_that_reads_a_mask_is_named(tmp_path: Path) -> None:
    network = QwenImageControlNetModel(**SIZES, num_layers=2, extra_condition_channels=4)
    save_file(network.state_dict(), tmp_path / "net.safetensors")
    with pytest.raises(CheckpointError, match="extra_condition_channels 4: a ControlNet that also"):
        controls_of(reading_of(tmp_path / "net.safetensors"), QWEN_IMAGE, GENERATION)


def test_edit_takes_none(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not Edit; remove them"):
        controls_of(reading_of(written(tmp_path)), QWEN_IMAGE, EDITING)


def test_8_bit_floats_are_multiplied_by_their_scales(tmp_path: Path) -> None:
    """Torch computes the expected products."""
    (tmp_path / "transformer").mkdir()
    written(tmp_path / "transformer")
    make_control(tmp_path / "net", tmp_path, 5)
    file = tmp_path / "net" / "diffusion_pytorch_model.safetensors"
    packed = in_eight_bits(load_file(file))
    plain = {
        key: x.float() * packed.get(f"{key.removesuffix('.weight')}.scale_weight", 1)
        for key, x in packed.items()
        if "scale" not in key
    }
    both = []
    for tensors in (packed, plain):
        save_file(tensors, file)
        reading = reading_of(tmp_path / "net")
        controls = controls_of(reading, QWEN_IMAGE, GENERATION)
        network = load_controls(controls, ("float32", "float32"), reading)
        both.append(jax.tree.leaves(nnx.state(network)))
    assert len(both[0]) == len(both[1]) > 0
    for a, b in zip(*both, strict=True):
        np.testing.assert_array_equal(a, b)


def test_work_is_about_the_share_of_the_blocks(tmp_path: Path) -> None:
    """Half of the blocks, each followed by a linear layer with 1/12 of a block's work."""
    work = read_files(QWEN_IMAGE, written(tmp_path)).work
    assert work == pytest.approx(0.5 * (1 + 1 / 12), rel=0.03)
