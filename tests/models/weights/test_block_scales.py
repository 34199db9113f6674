"""NVFP4 and MXFP8: each number times the scale of its block, by the formats' definitions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import save_file

from models.checkpoint.folder import CheckpointError, UnsupportedCheckpoint
from models.checkpoint.safetensors import ComponentFiles, open_tensors
from models.loading.abstract import abstract_module
from models.nn.layers.parameterised import linear
from models.weights.device_transfer import OnDevice, choose_transfer
from models.weights.loader import load

Arrays = dict[str, np.ndarray]
ROWS, COLUMNS = 300, 96
FACTOR = np.float32(0.37)


class Wide(nnx.Module):
    def __init__(self, *, rngs: nnx.Rngs) -> None:
        self.layer = linear(COLUMNS, ROWS, (None, None), use_bias=False, rngs=rngs)


def of_4_bits(code: int) -> float:
    """Return a 4-bit float: a sign, two bits of exponent with bias 1, and one of fraction."""
    exponent, fraction = code >> 1 & 3, (code & 1) / 2
    size = 2.0 ** (exponent - 1) * (1 + fraction) if exponent else fraction
    return -size if code & 8 else size


def in_tiles(scales: np.ndarray) -> np.ndarray:
    """Store scales as the matrix units read them: by cuBLAS's formula of an element's offset."""
    rows, columns = -(-scales.shape[0] // 128) * 128, -(-scales.shape[1] // 4) * 4
    stored = np.zeros(rows * columns, scales.dtype)
    for row, column in np.ndindex(*scales.shape):
        tile = row // 128 * (columns // 4) + column // 4
        stored[512 * tile + row % 32 * 16 + row % 128 // 32 * 4 + column % 4] = scales[row, column]
    return stored.reshape(rows, columns)


def nvfp4(*, comfy: bool) -> tuple[Arrays, np.ndarray]:
    """Return a stored weight of random bits, and its numbers."""
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 16, (ROWS, COLUMNS), np.uint8)
    scales = rng.uniform(0.1, 400, (ROWS, COLUMNS // 16)).astype(jnp.float8_e4m3fn)
    first, second = codes[:, 0::2], codes[:, 1::2]
    stored = {
        "weight": first << 4 | second if comfy else second << 4 | first,
        "weight_scale": in_tiles(scales) if comfy else scales,
        "weight_scale_2": FACTOR,
        "input_scale": np.float32(2),
    }
    factors = scales.astype(np.float32) * FACTOR
    numbers = np.vectorize(of_4_bits)(codes).astype(np.float32)
    return stored, numbers * factors.repeat(16, axis=1)


def mxfp8(*, comfy: bool) -> tuple[Arrays, np.ndarray]:
    rng = np.random.default_rng(1)
    weight = rng.normal(size=(ROWS, COLUMNS)).astype(jnp.float8_e4m3fn)
    exponents = rng.integers(110, 140, (ROWS, COLUMNS // 32), np.uint8)
    stored = {"weight": weight, "weight_scale": in_tiles(exponents) if comfy else exponents}
    factors = np.float32(2) ** (exponents.astype(np.float32) - 127)
    return stored, weight.astype(np.float32) * factors.repeat(32, axis=1)


FORMATS: Mapping[str, Callable[..., tuple[Arrays, np.ndarray]]] = {"nvfp4": nvfp4, "mxfp8": mxfp8}


def hint(**fields: Any) -> np.ndarray:
    return np.frombuffer(json.dumps(fields).encode(), np.uint8)


def saved(folder: Path, stored: Arrays, metadata: dict[str, str] | None = None) -> Path:
    arrays = {f"layer.{name}": np.ascontiguousarray(array) for name, array in stored.items()}
    save_file(arrays, folder / "diffusion_pytorch_model.safetensors", metadata)
    return folder


def loaded(folder: Path, transfer: Any = choose_transfer) -> np.ndarray:
    renames = ((r"layer\.weight", "layer.kernel"),)
    network = load(abstract_module(Wide), folder, renames, dtype=jnp.float32, transfer=transfer)
    return np.asarray(network.layer.kernel[...]).T


@pytest.mark.parametrize("transfer", [choose_transfer, OnDevice])
@pytest.mark.parametrize("name", FORMATS)
def test_files_of_modelopt(tmp_path: Path, name: str, transfer: Any) -> None:
    stored, expected = FORMATS[name](comfy=False)
    np.testing.assert_array_equal(loaded(saved(tmp_path, stored), transfer), expected)


@pytest.mark.parametrize(("name", "in_metadata"), [*product(FORMATS, [False, True])])
def test_files_of_comfyui(tmp_path: Path, name: str, in_metadata: bool) -> None:
    """A layer's format is in an array, or in the file's metadata without the layers' prefix."""
    stored, expected = FORMATS[name](comfy=True)
    layers = {"_quantization_metadata": json.dumps({"layers": {"layer": {"format": name}}})}
    marker = {} if in_metadata else {"comfy_quant": hint(format=name)}
    saved(tmp_path, stored | marker, layers if in_metadata else None)
    np.testing.assert_array_equal(loaded(tmp_path), expected)


@pytest.mark.parametrize("name", FORMATS)
def test_rows_are_read_across_tiles(tmp_path: Path, name: str) -> None:
    stored, expected = FORMATS[name](comfy=True)
    saved(tmp_path, stored | {"comfy_quant": hint(format=name)})
    with ExitStack() as files:
        part = ComponentFiles("layer", (tmp_path / "diffusion_pytorch_model.safetensors",))
        weight = open_tensors(part, files)["layer.weight"]
        for first, stop in [(0, 1), (127, 129), (130, 131), (255, 300), (299, 300)]:
            np.testing.assert_array_equal(weight.read(first, stop), expected[first:stop])


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("nvfp4", {"weight_scale": None}, "NVFP4 without its numbers or their scales"),
        ("nvfp4", {"weight": None}, "NVFP4 without its numbers or their scales"),
        ("nvfp4", {"weight": np.zeros((ROWS, 48), np.int8)}, "is no NVFP4.* are I8"),
        ("nvfp4", {"weight": np.zeros(48, np.uint8)}, r"is no NVFP4.* are U8 \[48\]"),
        ("nvfp4", {"weight": np.zeros((ROWS, 47), np.uint8)}, "no scales of 16 numbers each"),
        ("nvfp4", {"weight_scale": np.ones((ROWS, 6), np.float32)}, "is no NVFP4.*F32"),
        ("nvfp4", {"weight_scale_2": np.ones(2, np.float32)}, r"is no NVFP4.*F32 \[2\]"),
        ("mxfp8", {"weight": np.zeros((ROWS, 80), jnp.float8_e4m3fn)}, "no scales of 32 numbers"),
        ("mxfp8", {"weight_scale": np.zeros((256, 4), np.uint8)}, "no scales of 32 numbers"),
    ],
)
def test_parts_that_do_not_fit_are_refused(
    tmp_path: Path, name: str, change: Mapping[str, Any], message: str
) -> None:
    stored = FORMATS[name](comfy=True)[0] | {"comfy_quant": hint(format=name)} | change
    saved(tmp_path, {key: array for key, array in stored.items() if array is not None})
    with pytest.raises(CheckpointError, match=message):
        loaded(tmp_path)


@pytest.mark.parametrize("change", [np.zeros((ROWS, 5), jnp.float8_e4m3fn), in_tiles])
def test_scales_of_modelopt_are_by_row(tmp_path: Path, change: Any) -> None:
    stored = nvfp4(comfy=False)[0]
    scales = change(stored["weight_scale"]) if callable(change) else change
    saved(tmp_path, stored | {"weight_scale": scales})
    with pytest.raises(CheckpointError, match="no scales of 16 numbers each"):
        loaded(tmp_path)


@pytest.mark.parametrize("name", FORMATS)
def test_rotated_weights_are_refused(tmp_path: Path, name: str) -> None:
    stored = FORMATS[name](comfy=True)[0] | {"comfy_quant": hint(format=name, convrot=True)}
    with pytest.raises(UnsupportedCheckpoint, match=f"{name} with rotated weights"):
        loaded(saved(tmp_path, stored))
