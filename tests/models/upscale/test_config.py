"""Sizes of upscalers, and invalid upscaler files."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from safetensors.torch import load_file as torch_load_file

from models.checkpoint.folder import CheckpointError
from models.spec.file_kinds import ZIPPED
from models.upscale.config import RrdbConfig, read_shapes
from models.upscale.load import load_upscaler
from tests.parity.torch_rrdbnet import net, write

CONFIG = RrdbConfig(blocks=2, features=8, growth=4, doublings=2, unshuffle=1)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(net(CONFIG), tmp_path / "net.safetensors")


def changed(file: Path, **arrays: np.ndarray | None) -> Path:
    """Replace arrays of a file; None removes an array."""
    tensors = {
        **load_file(file),
        **{name.replace("__", "."): array for name, array in arrays.items()},
    }
    save_file({name: array for name, array in tensors.items() if array is not None}, file)
    return file


def test_published_sizes() -> None:
    """Real-ESRGAN's x4plus, x2plus and anime 6B."""
    assert RrdbConfig(23, 64, 32, 2, 1).scale == 4
    assert RrdbConfig(23, 64, 32, 2, 2).scale == 2
    assert RrdbConfig(6, 64, 32, 2, 1).scale == 4


@pytest.mark.parametrize("prefix", ["params_ema.", "params."])
def test_a_trainers_prefix_is_left_out(file: Path, prefix: str) -> None:
    save_file({prefix + key: array for key, array in load_file(file).items()}, file)
    assert read_shapes(file).config == CONFIG
    load_upscaler(file, "float32", 64, jax.devices()[0])


def test_pickled_files_are_not_opened(tmp_path: Path) -> None:
    file = tmp_path / "RealESRGAN_x4plus.pth"
    torch.save({"params": {"x": torch.zeros(2)}}, file)
    with pytest.raises(CheckpointError, match=r"convert it once: python -c .*save_file"):
        read_shapes(file)


def test_the_command_that_converts_pickled_files_does(file: Path, tmp_path: Path) -> None:
    torch.save({"params_ema": torch_load_file(file), "step": 7}, tmp_path / "net.pth")
    program = re.search(r'python -c "(.+)" IN', ZIPPED.remedy)
    assert program is not None
    paths = [str(tmp_path / name) for name in ("net.pth", "out.safetensors")]
    subprocess.run([sys.executable, "-c", program[1], *paths], check=True)
    assert read_shapes(tmp_path / "out.safetensors").config == CONFIG


def test_ignored_keys_are_reported(file: Path) -> None:
    save_file(load_file(file) | {"__x0__": np.zeros(2)}, file)
    loaded = load_upscaler(file, "float32", 64, jax.devices()[0])
    assert loaded.warnings == (f"{file.name}: ignored, since they are not weights: __x0__",)


def test_another_network_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "net.safetensors"
    save_file({"layers.0.weight": np.zeros((2, 2), np.float32)}, file)
    with pytest.raises(CheckpointError, match="no RRDBNet, the network of ESRGAN"):
        read_shapes(file)


def test_missing_array_is_named(file: Path) -> None:
    with pytest.raises(CheckpointError, match="conv_last"):
        read_shapes(changed(file, conv_last__weight=None))
    with pytest.raises(CheckpointError, match=r"missing: body\.1\.rdb2\.conv3\.bias"):
        broken = changed(write(net(CONFIG), file), body__1__rdb2__conv3__bias=None)
        load_upscaler(broken, "float32", 64, jax.devices()[0])


def test_grey_images_are_refused(file: Path) -> None:
    grey = np.zeros((1, 8, 3, 3), np.float32)
    with pytest.raises(CheckpointError, match="returns 1 channels; images have 3"):
        read_shapes(changed(file, conv_last__weight=grey))


def test_non_square_channel_counts_are_rejected(file: Path) -> None:
    odd = np.zeros((8, 4, 3, 3), np.float32)
    with pytest.raises(CheckpointError, match="reads 4 channels"):
        read_shapes(changed(file, conv_first__weight=odd))


def test_nan_and_infinity_are_rejected(file: Path) -> None:
    bad = np.full((3,), np.nan, np.float32)
    with pytest.raises(CheckpointError, match="NaN or infinity in conv_last"):
        load_upscaler(changed(file, conv_last__bias=bad), "float32", 64, jax.devices()[0])


def test_a_scale_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="not an integer scale"):
        RrdbConfig(1, 8, 4, 1, 4)
