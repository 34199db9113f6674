"""Weight loader: layouts, dtypes, stacked leaves, complete error lists, and memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from gguf import GGMLQuantizationType, GGUFWriter
from safetensors.numpy import save_file

from models.checkpoint.direct_io import DiskFile
from models.checkpoint.fingerprint import fingerprint
from models.checkpoint.folder import CheckpointError, UnsupportedCheckpoint, WeightsError
from models.checkpoint.key_mapping import Renames
from models.checkpoint.number_formats import FP4, NF4
from models.checkpoint.safetensors import ComponentFiles
from models.loading.abstract import abstract_module
from models.nn.layers.parameterised import conv, embed, linear
from models.nn.layers.scanned import stack
from models.parallel.axis_rules import auto_mesh
from models.spec.notices import collected_notices
from models.weights.device_transfer import PIECE, OnDevice, choose_transfer
from models.weights.loader import flat_parameters, load

LAYERS = 3


class Block(nnx.Module):
    def __init__(self, *, rngs: nnx.Rngs) -> None:
        self.up = linear(5, 130, ("embed", "mlp"), rngs=rngs)


class Network(nnx.Module):
    """A leaf of every kind that checkpoints contain."""

    def __init__(self, *, rngs: nnx.Rngs) -> None:
        self.table = embed(11, 5, ("vocab", "embed"), rngs=rngs)
        self.blocks = stack(Block, LAYERS, rngs=rngs)
        self.convs = nnx.List([conv(2, 3, (4, 6), rngs=rngs), conv(3, 2, (2, 3, 4), rngs=rngs)])
        self.point = linear(5, 7, ("embed", None), rngs=rngs)
        self.shift_scale = linear(5, 6, ("embed", None), use_bias=False, rngs=rngs)


def swap_halves(tensor: np.ndarray) -> np.ndarray:
    return np.roll(tensor, len(tensor) // 2, axis=0)


RENAMES: Renames = (
    (r"embed\.positions", ""),
    (r"embed\.weight", "table.embedding"),
    (r"tied\.weight", "table.embedding"),
    (r"(?:old\.)?layers\.(\d+)\.fc\.weight", r"blocks.up.kernel[\1]"),
    (r"(?:old\.)?layers\.(\d+)\.fc\.bias", r"blocks.up.bias[\1]"),
    (r"convs\.(\d)\.weight", r"convs.\1.kernel"),
    (r"mod\.weight", "shift_scale.kernel", swap_halves),
    (r"(.+)\.weight", r"\1.kernel"),
    (r"(.+)\.bias", r"\1.bias"),
)


def tensors(dtype: Any = np.float32) -> dict[str, np.ndarray]:
    """Arrays of a checkpoint of the network, in torch's layouts."""
    random = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {
        "embed.weight": (11, 5),
        "convs.0.weight": (3, 2, 4, 6),
        "convs.0.bias": (3,),
        "convs.1.weight": (2, 3, 2, 3, 4),
        "convs.1.bias": (2,),
        "point.weight": (7, 5, 1, 1),
        "point.bias": (7,),
        "mod.weight": (6, 5),
        **{f"layers.{layer}.fc.weight": (130, 5) for layer in range(LAYERS)},
        **{f"layers.{layer}.fc.bias": (130,) for layer in range(LAYERS)},
    }
    return {key: random.normal(size=shape).astype(dtype) for key, shape in shapes.items()}


def loaded(folder: Path | ComponentFiles, **options: Any) -> Network:
    abstract = abstract_module(Network)
    return load(abstract, folder, RENAMES, **({"dtype": jnp.float32} | options))


def saved(folder: Path, arrays: dict[str, np.ndarray]) -> Path:
    save_file({key: np.asarray(array, order="C") for key, array in arrays.items()}, _file(folder))
    return folder


def _file(folder: Path) -> Path:
    return folder / "model.safetensors"


def check(network: Network, stored: dict[str, np.ndarray], dtype: Any = np.float32) -> None:
    """Compare every array with the stored one, placed by an independent table."""
    layers = [
        (stored[f"layers.{n}.fc.weight"], stored[f"layers.{n}.fc.bias"]) for n in range(LAYERS)
    ]
    expected = {
        "table.embedding": stored["embed.weight"],
        "blocks.up.kernel": np.stack([weight.T for weight, _ in layers]),
        "blocks.up.bias": np.stack([bias for _, bias in layers]),
        "convs.0.kernel": np.einsum("oihw->hwio", stored["convs.0.weight"]),
        "convs.0.bias": stored["convs.0.bias"],
        "convs.1.kernel": np.einsum("oithw->thwio", stored["convs.1.weight"]),
        "convs.1.bias": stored["convs.1.bias"],
        "point.kernel": stored["point.weight"][:, :, 0, 0].T,
        "point.bias": stored["point.bias"],
        "shift_scale.kernel": np.concatenate(
            [stored["mod.weight"][3:], stored["mod.weight"][:3]]
        ).T,
    }
    arrays = {path: leaf.get_value() for path, leaf in flat_parameters(network).items()}
    assert arrays.keys() == expected.keys()
    for path, array in expected.items():
        assert arrays[path].dtype == dtype, path
        np.testing.assert_array_equal(arrays[path], array.astype(dtype), err_msg=path)


@pytest.mark.parametrize("stored", [np.float32, np.float16, jnp.bfloat16], ids=str)
@pytest.mark.parametrize("asked", [np.float32, np.float16, jnp.bfloat16], ids=str)
def test_every_leaf_in_every_dtype(tmp_path: Path, stored: Any, asked: Any) -> None:
    arrays = tensors(stored)
    check(loaded(saved(tmp_path, arrays), dtype=asked), arrays, asked)


@pytest.mark.parametrize("stored", [np.float32, jnp.bfloat16], ids=str)
@pytest.mark.parametrize("asked", [np.float32, jnp.bfloat16], ids=str)
def test_transposing_on_the_device_gives_the_same_arrays(
    tmp_path: Path, stored: Any, asked: Any
) -> None:
    arrays = tensors(stored)
    check(loaded(saved(tmp_path, arrays), dtype=asked, transfer=OnDevice), arrays, asked)


@pytest.mark.parametrize("transfer", [choose_transfer, OnDevice])
def test_vectors_may_be_stored_with_axes_of_one(tmp_path: Path, transfer: Any) -> None:
    arrays = tensors()
    stored = {
        "convs.0.bias": arrays["convs.0.bias"][None, :, None, None],
        "layers.1.fc.bias": arrays["layers.1.fc.bias"][None],
    }
    check(loaded(saved(tmp_path, {**arrays, **stored}), transfer=transfer), arrays)
    wrong = {"convs.0.bias": np.zeros((1, 3, 1, 2), np.float32)}
    with pytest.raises(WeightsError, match=r"convs\.0\.bias"):
        loaded(saved(tmp_path, {**arrays, **wrong}), transfer=transfer)


@pytest.mark.parametrize("transfer", [choose_transfer, OnDevice])
@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("asked", [np.float32, jnp.bfloat16], ids=str)
def test_scaled_8_bit_floats_are_multiplied_out(
    tmp_path: Path, asked: Any, rows: bool, transfer: Any
) -> None:
    """An array is rounded once, from float32, with any kind of transfer."""
    arrays = tensors()
    packed, plain = dict(arrays), dict(arrays)
    for key in ("layers.0.fc.weight", "convs.0.weight", "mod.weight"):
        scale = np.linspace(0.3, 3, len(arrays[key]), dtype=np.float32) if rows else np.float32(0.3)
        packed[key] = arrays[key].astype(jnp.float8_e4m3fn)
        packed[f"{key.removesuffix('.weight')}.scale_weight"] = np.asarray(scale)
        factors = np.reshape(scale, (-1, *[1] * (arrays[key].ndim - 1)))
        plain[key] = packed[key].astype(np.float32) * factors
    network = loaded(saved(tmp_path, packed), dtype=asked, transfer=transfer)
    check(network, plain, asked)


SCALES_OF = {
    "whole": lambda shape: np.float32(0.3),
    "rows": lambda shape: np.linspace(0.3, 3, shape[0], dtype=np.float32)[:, None],
    "blocks": lambda shape: np.linspace(0.3, 3, 26 * 5, dtype=np.float32).reshape(26, 5),
}
"""Scales of an array of the shape (130, 5), by what they belong to."""


@pytest.mark.parametrize("transfer", [choose_transfer, OnDevice])
@pytest.mark.parametrize("kind", [np.int8, jnp.float8_e4m3fn], ids=["int8", "float8"])
@pytest.mark.parametrize("part", SCALES_OF)
def test_weights_in_8_bits_are_multiplied_by_their_scales(
    tmp_path: Path, part: str, kind: Any, transfer: Any
) -> None:
    """Files of ComfyUI and ModelOpt: each weight is its value times the scale of its block."""
    arrays = tensors()
    packed, plain = dict(arrays), dict(arrays)
    key, scale = "layers.1.fc.weight", SCALES_OF[part]((130, 5))
    packed[key] = np.clip(40 * arrays[key], -127, 127).astype(kind)
    packed["layers.1.fc.weight_scale"] = np.asarray(scale)
    packed["layers.1.fc.input_scale"] = np.asarray(np.float32(2.0))
    packed["layers.1.fc.comfy_quant"] = hint("int8_tensorwise")
    rows, columns = np.atleast_2d(scale).shape
    factors = np.kron(np.atleast_2d(scale), np.ones((130 // rows, 5 // columns), np.float32))
    plain[key] = packed[key].astype(np.float32) * factors
    check(loaded(saved(tmp_path, packed), transfer=transfer), plain)


def hint(name: str, **fields: Any) -> np.ndarray:
    return np.frombuffer(json.dumps({"format": name, **fields}).encode(), np.uint8)


@pytest.mark.parametrize("kind", [np.float16, jnp.bfloat16, np.float64], ids=str)
def test_scales_are_floats_of_any_format(tmp_path: Path, kind: Any) -> None:
    arrays = tensors()
    packed = arrays | {
        "mod.weight": np.clip(40 * arrays["mod.weight"], -127, 127).astype(np.int8),
        "mod.scale_weight": np.asarray(0.5, kind),
    }
    plain = arrays | {"mod.weight": packed["mod.weight"].astype(np.float32) * np.float32(0.5)}
    check(loaded(saved(tmp_path, packed)), plain)


def test_64_bit_floats_are_rounded(tmp_path: Path) -> None:
    arrays = tensors(np.float64)
    check(loaded(saved(tmp_path, arrays)), arrays)


UNREAD = {
    "INT8 of older versions of bitsandbytes": {"mod.weight_format": np.uint8(2)},
    "NVFP4 of compressed-tensors": {"mod.weight_global_scale": np.float32([1])},
    "'fp3'": {"mod.weight": np.zeros((6, 2), np.uint8), "mod.comfy_quant": hint("fp3")},
    "int8_tensorwise with rotated weights": {
        "mod.weight": np.zeros((6, 5), np.int8),
        "mod.weight_scale": np.ones(6, np.float32),
        "mod.comfy_quant": hint("int8_tensorwise", convrot=True, convrot_groupsize=6),
    },
    "AWQ of ModelOpt": {"mod.pre_quant_scale": np.ones(5, np.float32)},
    "SVDQuant": {"mod.wscales": np.zeros((2, 6), np.float32)},
    "GPTQ or AWQ": {"mod.qzeros": np.zeros((2, 6), np.int32)},
    "quanto with fewer than 8 bits": {"mod.weight._shift": np.zeros((6, 5), np.float32)},
}


def nf4(weight: np.ndarray, block: int, **state: Any) -> dict[str, np.ndarray]:
    """Quantize a matrix as bitsandbytes stores it; the nearest number of each, by block."""
    return four_bits(weight, block, "nf4", NF4, **state)


def four_bits(
    weight: np.ndarray, block: int, kind: str, numbers: np.ndarray, **state: Any
) -> dict[str, np.ndarray]:
    blocks = weight.reshape(-1, block)
    scales = np.abs(blocks).max(axis=1)
    codes = np.abs((blocks / scales[:, None]).reshape(-1)[:, None] - numbers).argmin(axis=1)
    pairs = codes.astype(np.uint8).reshape(-1, 2)
    about = {"quant_type": kind, "blocksize": block, "shape": [*weight.shape], **state}
    return {
        "": (pairs[:, 0] << 4 | pairs[:, 1])[:, None],
        ".absmax": scales.astype(np.float32),
        ".quant_map": numbers,
        f".quant_state.bitsandbytes__{kind}": np.frombuffer(json.dumps(about).encode(), np.uint8),
    }


EIGHT_BITS = (
    ("mod.weight", "mod.SCB", "mod.weight_format"),
    ("mod.weight._data", "mod.weight._scale", "mod.output_scale"),
)


@pytest.mark.parametrize("names", EIGHT_BITS, ids=["bitsandbytes", "quanto"])
def test_8_bits_of_other_libraries(tmp_path: Path, names: tuple[str, str, str]) -> None:
    arrays = tensors()
    weight = np.clip(40 * arrays.pop("mod.weight"), -127, 127).astype(np.int8)
    scale = np.linspace(0.3, 3, len(weight), dtype=np.float32)
    factors = scale / 127 if names[1] == "mod.SCB" else scale
    stored = dict(zip(names, (weight, scale, np.uint8(0)), strict=True))
    network = loaded(saved(tmp_path, arrays | stored))
    expected = swap_halves(weight * factors[:, None]).T
    np.testing.assert_allclose(network.shift_scale.kernel[...], expected, rtol=3e-7)


@pytest.mark.parametrize("where", ["array", "metadata", "prefix"])
def test_rotated_int8_is_rotated_back(tmp_path: Path, where: str) -> None:
    """ConvRot of ComfyUI: rows times a Hadamard matrix, a Kronecker power of one of order 4."""
    rng = np.random.default_rng(0)
    four = np.float64([[1, 1, 1, -1], [1, 1, -1, 1], [1, -1, 1, 1], [-1, 1, 1, 1]]) / 2
    matrix = np.kron(np.kron(four, four), four)
    weight = rng.integers(-127, 128, (6, 128), np.int8)
    scale = np.linspace(0.3, 3, 6, dtype=np.float32)
    about = {"convrot": True, "convrot_groupsize": 64, "per_row": True}
    prefix = "model.diffusion_model." if where == "prefix" else ""
    stored = {f"{prefix}layer.weight": weight, f"{prefix}layer.weight_scale": scale}
    metadata = None
    if where == "array":
        stored["layer.comfy_quant"] = hint("int8_tensorwise", **about)
    else:
        layers = {"layers": {"layer": {"format": "int8_tensorwise", **about}}}
        metadata = {"_quantization_metadata": json.dumps(layers)}
    save_file(stored, _file(tmp_path), metadata)
    part = ComponentFiles("layer", (_file(tmp_path),), prefix)
    network = load(abstract_module(Wide), part, ((r"layer\.weight", "layer.kernel"),))
    rotated = (weight * scale[:, None]).astype(np.float64).reshape(6, 2, 64)
    expected = (rotated @ matrix).reshape(6, 128)
    np.testing.assert_allclose(network.layer.kernel[...].T, expected, rtol=1e-4, atol=1e-3)


def test_rows_that_are_not_rotated_as_stated_are_refused(tmp_path: Path) -> None:
    stored = {"weight": np.zeros((6, 128), np.int8), "weight_scale": np.ones(6, np.float32)}
    stored["comfy_quant"] = hint("int8_tensorwise", convrot=True)
    saved(tmp_path, {f"layer.{name}": array for name, array in stored.items()})
    with pytest.raises(CheckpointError, match="whose rows are not rotated 256 numbers at a time"):
        load(abstract_module(Wide), tmp_path, ((r"layer\.weight", "layer.kernel"),))


class Wide(nnx.Module):
    def __init__(self, *, rngs: nnx.Rngs) -> None:
        self.layer = linear(128, 6, (None, None), use_bias=False, rngs=rngs)


@pytest.mark.parametrize("transfer", [choose_transfer, OnDevice])
@pytest.mark.parametrize("numbers", [NF4, FP4], ids=["nf4", "fp4"])
def test_4_bits_are_read_by_their_formula(
    tmp_path: Path, numbers: np.ndarray, transfer: Any
) -> None:
    weight = np.random.default_rng(0).normal(size=(6, 128)).astype(np.float32)
    stored = four_bits(weight, 64, "nf4" if numbers is NF4 else "fp4", numbers)
    codes = np.stack([stored[""][:, 0] >> 4, stored[""][:, 0] & 15], axis=1).reshape(-1, 64)
    expected = (numbers[codes] * stored[".absmax"][:, None]).reshape(6, 128)
    assert np.abs(expected - weight).max() < 0.5, "the layout of the test is right"
    saved(tmp_path, {f"layer.weight{ending}": array for ending, array in stored.items()})
    renames = ((r"layer\.weight", "layer.kernel"),)
    network = load(abstract_module(Wide), tmp_path, renames, dtype=jnp.float32, transfer=transfer)
    np.testing.assert_array_equal(network.layer.kernel[...], expected.T)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({".absmax": np.zeros(12, np.uint8)}, "NF4 with quantized scales is not read"),
        ({".absmax": np.zeros(11, np.float32)}, "has not one scale for each block"),
        ({"": np.zeros((300, 1), np.uint8)}, r"not the numbers of its shape \[6, 128\]"),
        (nf4(np.ones((6, 128), "f4"), 64, shape=[2**40, 2**40]), "not the numbers of its shape"),
        (nf4(np.ones((6, 128), "f4"), 64, shape="6"), "not the numbers of its shape"),
        (nf4(np.ones((6, 128), "f4"), 64, blocksize=48), "NF4 with blocks of 48 numbers in rows"),
        ({".quant_state.bitsandbytes__nf4": np.zeros(9, np.uint8)}, "is not valid JSON"),
        ({".quant_state.bitsandbytes__nf4": np.zeros(70_000, np.uint8)}, "no short text"),
    ],
)
def test_nf4_that_cannot_be_is_refused(
    tmp_path: Path, change: dict[str, np.ndarray], message: str
) -> None:
    stored = nf4(np.ones((6, 128), np.float32), 64) | change
    saved(tmp_path, {f"layer.weight{ending}": array for ending, array in stored.items()})
    with pytest.raises(CheckpointError, match=message):
        load(abstract_module(Wide), tmp_path, ((r"layer\.weight", "layer.kernel"),))


@pytest.mark.parametrize("name", UNREAD)
def test_a_format_that_is_not_read_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=rf"in the format {name}.* are not read \(mod"):
        loaded(saved(tmp_path, tensors() | UNREAD[name]))


def test_formats_in_metadata_are_read(tmp_path: Path) -> None:
    layers = {"layers": {"mod": {"format": "fp3"}}}
    save_file(tensors(), _file(tmp_path), {"_quantization_metadata": json.dumps(layers)})
    with pytest.raises(UnsupportedCheckpoint, match=r"'fp3' are not read \(mod\)"):
        loaded(tmp_path)


@pytest.mark.parametrize("shape", [(4, 5), (130, 2), (5,), (0, 1)])
def test_a_scale_that_does_not_fit_is_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    packed = tensors() | {"layers.0.fc.weight": np.zeros((130, 5), np.int8)}
    packed["layers.0.fc.weight_scale"] = np.ones(shape, np.float32)
    with pytest.raises(CheckpointError, match=r"layers\.0\.fc\.weight_scale has the shape"):
        loaded(saved(tmp_path, packed))


class TestArraysThatAreNoWeights:
    """Unexpected arrays without effect: skipped with a warning, in the log and for clients."""

    @pytest.mark.parametrize(
        ("key", "array"),
        [
            ("__x0__", np.zeros(3, np.float32)),
            ("net.__32x32__", np.float32([1, 2])),
            ("empty", np.zeros((0, 5), np.float32)),
            ("global_step", np.asarray(1000)),
            ("temperature", np.float64(0.5)),
            ("steps", np.arange(7)),
            ("layers.7.fc.num_batches_tracked", np.zeros((2, 2), np.float32)),
            ("rotary.inv_freq", np.zeros(16, np.float32)),
            ("spiece_model", np.zeros(16, np.uint8)),
            ("text_model.tekken_model", np.zeros(16, np.uint8)),
        ],
    )
    def test_keys_without_weights_are_ignored(self, tmp_path: Path, key: str, array: Any) -> None:
        arrays = tensors()
        with collected_notices() as notices:
            check(loaded(saved(tmp_path, arrays | {key: np.asarray(array)})), arrays)
        assert notices == [f"model.safetensors: ignored, since they are not weights: {key}"]

    def test_long_lists_of_ignored_arrays_are_shortened(self, tmp_path: Path) -> None:
        many = {f"step.{n:03}": np.asarray(n) for n in range(200)}
        with collected_notices() as notices:
            loaded(saved(tmp_path, tensors() | many))
        assert notices[0].endswith("step.007 and 192 more") and len(notices[0]) < 200

    def test_a_marker_that_changes_the_network_is_stray(self, tmp_path: Path) -> None:
        with pytest.raises(WeightsError, match="stray: __index_timestep_zero__"):
            loaded(saved(tmp_path, tensors() | {"__index_timestep_zero__": np.zeros(0, "f4")}))


def test_leading_axes_of_one_may_be_missing(tmp_path: Path) -> None:
    """GGUF's tools drop them, as in the tables (1, 6, width) of Wan."""

    class Tables(nnx.Module):
        def __init__(self, *, rngs: nnx.Rngs) -> None:
            self.table = nnx.Param(jnp.zeros((1, 6, 5)))

    table = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    for stored in (table, table[None]):
        module = nnx.eval_shape(lambda: Tables(rngs=nnx.Rngs(0)))
        network = load(module, saved(tmp_path, {"table": stored}), ((r"table", "table"),))
        np.testing.assert_array_equal(network.table[...], table[None])


def test_layers_spread_over_shards(tmp_path: Path) -> None:
    arrays = tensors()
    shards = [dict(list(arrays.items())[start::3]) for start in range(3)]
    for number, shard in enumerate(shards):
        save_file(shard, tmp_path / f"part-{number}.safetensors")
    weight_map = {key: f"part-{n}.safetensors" for n, shard in enumerate(shards) for key in shard}
    index = tmp_path / "diffusion_pytorch_model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    check(loaded(tmp_path), arrays)


def test_requested_variant_is_loaded(tmp_path: Path) -> None:
    arrays = tensors()
    saved(tmp_path, {key: np.zeros_like(array) for key, array in arrays.items()})
    save_file(arrays, tmp_path / "model.fp16.safetensors")
    check(loaded(tmp_path, variant="fp16"), arrays)


def test_abstract_module_stays_abstract(tmp_path: Path) -> None:
    abstract = abstract_module(Network)
    load(abstract, saved(tmp_path, tensors()), RENAMES, dtype=jnp.float32)
    leaves = flat_parameters(abstract).values()
    assert all(isinstance(leaf.get_value(), jax.ShapeDtypeStruct) for leaf in leaves)


class TestPartsOfAFile:
    """A component in one file with others, and tensors that several leaves share."""

    def test_only_the_keys_behind_the_prefix_are_the_components(self, tmp_path: Path) -> None:
        arrays = tensors()
        component = {f"net.{key}": array for key, array in arrays.items()}
        saved(tmp_path, component | {"point.weight": np.zeros(3, np.float32), "x": np.arange(3)})
        check(loaded(ComponentFiles("net", (_file(tmp_path),), "net.")), arrays)

    def test_missing_and_stray_keys_are_named_as_in_the_file(self, tmp_path: Path) -> None:
        component = {f"net.{key}": array for key, array in tensors().items()}
        component["net.lora"] = component.pop("net.point.bias")
        saved(tmp_path, component)
        with pytest.raises(WeightsError) as raised:
            loaded(ComponentFiles("net of a file", (_file(tmp_path),), "net."))
        error = raised.value
        assert (error.missing, error.stray) == (("net.point.bias",), ("net.lora",))
        assert error.component == "net of a file"

    @pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16], ids=str)
    def test_slices_and_a_transposed_matrix(self, tmp_path: Path, dtype: Any) -> None:
        random = np.random.default_rng(1)
        fused = random.normal(size=(LAYERS, 12, 5)).astype(dtype)
        projection = random.normal(size=(5, 7)).astype(dtype)
        file = {f"{n}.qkv": layer for n, layer in enumerate(fused)} | {"projection": projection}
        leaves = flat_parameters(_fused(saved(tmp_path, file), dtype))
        for name, rows in (("q", slice(0, 4)), ("k", slice(4, 8)), ("v", slice(8, 12))):
            expected = fused[:, rows].transpose(0, 2, 1)
            np.testing.assert_array_equal(leaves[f"blocks.{name}.kernel"].get_value(), expected)
        np.testing.assert_array_equal(leaves["projection.kernel"].get_value(), projection)

    def test_a_shared_tensor_is_named_once(self, tmp_path: Path) -> None:
        file = {"0.qkv": np.zeros((13, 5), np.float32), "2.qkv": np.zeros((12, 5), np.float32)}
        file["projection"] = np.zeros((7, 5), np.float32)
        with pytest.raises(WeightsError) as error:
            _fused(saved(tmp_path, file), np.float32)
        assert error.value.missing == ("1.qkv",)
        assert set(error.value.misshapen) == {
            ("0.qkv", (12, 5), (13, 5)),
            ("projection", (5, 7), (7, 5)),
        }


class Fused(nnx.Module):
    def __init__(self, *, rngs: nnx.Rngs) -> None:
        self.blocks = stack(Projections, LAYERS, rngs=rngs)
        self.projection = linear(5, 7, (None, None), use_bias=False, rngs=rngs)


class Projections(nnx.Module):
    def __init__(self, *, rngs: nnx.Rngs) -> None:
        self.q, self.k, self.v = (
            linear(5, 4, (None, None), use_bias=False, rngs=rngs) for _ in range(3)
        )


def _fused(folder: Path, dtype: Any) -> Fused:
    renames: Renames = (
        (r"(\d)\.qkv", r"blocks.{q,k,v}.kernel[\1]"),
        ("projection", "projection.kernel.T"),
    )
    abstract = abstract_module(Fused)
    return load(abstract, folder, renames, dtype=dtype)


class TestPlacement:
    def test_arrays_are_sharded_by_their_axes(self, tmp_path: Path) -> None:
        mesh = auto_mesh(np.array(jax.devices()[:1]), ("tensor",))
        shardings = {}

        def sharding(path: str, leaf: nnx.Variable) -> jax.sharding.Sharding:
            split = ["tensor" if axis == "mlp" else None for axis in leaf.axes]
            shardings[path] = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*split))
            return shardings[path]

        leaves = flat_parameters(loaded(saved(tmp_path, tensors()), sharding=sharding))
        assert {path: leaf.get_value().sharding for path, leaf in leaves.items()} == shardings
        assert shardings["blocks.up.kernel"].spec == jax.sharding.PartitionSpec(
            None, None, "tensor"
        )

    def test_arrays_are_placed_on_several_devices(self, tmp_path: Path) -> None:
        mesh = auto_mesh(np.array(jax.devices()[:2]), ("tensor",))

        def sharding(path: str, leaf: nnx.Variable) -> jax.sharding.Sharding:
            split = ["tensor" if axis == "mlp" else None for axis in leaf.axes]
            return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*split))

        folder = saved(tmp_path, tensors())
        for transfer in (choose_transfer, OnDevice):
            network = loaded(folder, sharding=sharding, transfer=transfer)
            check(network, tensors())
            kernel = flat_parameters(network)["blocks.up.kernel"].get_value()
            assert [shard.data.shape for shard in kernel.addressable_shards] == [(3, 5, 65)] * 2


class TestFaults:
    def test_load_error_names_all_mismatched_keys(self, tmp_path: Path) -> None:
        arrays = tensors()
        del arrays["layers.1.fc.weight"], arrays["point.bias"]
        arrays["layers.3.fc.weight"] = np.zeros((130, 5), np.float32)
        arrays["lora.up"] = np.zeros(3, np.float32)
        arrays["guidance.weight"] = np.zeros((2, 2), np.float32)
        arrays["embed.weight"] = np.zeros((5, 11), np.float32)
        arrays["layers.0.fc.bias"] = np.zeros(131, np.float32)
        arrays["convs.0.weight"] = np.zeros((3, 2, 6, 4), np.float32)
        arrays["mod.weight"] = np.zeros((6, 5), np.int8)
        folder = tmp_path / "transformer"
        folder.mkdir()
        with pytest.raises(WeightsError) as raised:
            loaded(saved(folder, arrays))
        error = raised.value
        assert error.component == "transformer"
        assert set(error.missing) == {"layers.1.fc.weight", "point.bias"}
        assert set(error.stray) == {"layers.3.fc.weight", "lora.up", "guidance.weight"}
        assert set(error.misshapen) == {
            ("embed.weight", (11, 5), (5, 11)),
            ("layers.0.fc.bias", (130,), (131,)),
            ("convs.0.weight", (3, 2, 4, 6), (3, 2, 6, 4)),
        }
        assert error.mistyped == (("mod.weight", "I8"),)
        for part in ("transformer", *error.missing, *error.stray, "[11, 5] and is [5, 11]", "I8"):
            assert part in str(error)

    def test_a_whole_stack_missing(self, tmp_path: Path) -> None:
        arrays = {key: array for key, array in tensors().items() if "fc" not in key}
        with pytest.raises(WeightsError) as error:
            loaded(saved(tmp_path, arrays))
        names = {f"layers.{n}.fc.{kind}" for n in range(LAYERS) for kind in ("weight", "bias")}
        assert set(error.value.missing) == names

    @pytest.mark.parametrize("shape", [(7, 5, 2, 1), (7, 5, 1, 1, 3), (5, 7), (7,), ()], ids=str)
    def test_only_windows_of_one_are_dropped(self, tmp_path: Path, shape: tuple[int, ...]) -> None:
        arrays = tensors() | {"point.weight": np.zeros(shape, np.float32)}
        with pytest.raises(WeightsError) as error:
            loaded(saved(tmp_path, arrays))
        assert error.value.misshapen == (("point.weight", (7, 5), shape),)

    def test_tied_keys_are_one_and_the_first_rule_serves(self, tmp_path: Path) -> None:
        arrays = tensors()
        check(
            loaded(saved(tmp_path, {"tied.weight": np.ones((11, 5), np.float32), **arrays})), arrays
        )

    def test_duplicate_name_in_another_spelling_is_stray(self, tmp_path: Path) -> None:
        arrays = tensors() | {"old.layers.0.fc.bias": np.zeros(130, np.float32)}
        with pytest.raises(WeightsError) as error:
            loaded(saved(tmp_path, arrays))
        assert len(error.value.stray) == 1
        assert error.value.stray[0].endswith("layers.0.fc.bias")

    def test_ignored_keys_may_have_any_content(self, tmp_path: Path) -> None:
        arrays = tensors()
        positions = {"embed.positions": np.arange(5)}
        check(loaded(saved(tmp_path, arrays | positions)), arrays)

    @pytest.mark.parametrize("left", [7, 100, -1])
    def test_a_damaged_file_is_named(self, tmp_path: Path, left: int) -> None:
        file = _file(saved(tmp_path, tensors()))
        file.write_bytes(file.read_bytes()[:left])
        with pytest.raises(CheckpointError, match=r"model\.safetensors: not a whole safetensors"):
            loaded(tmp_path)

    def test_a_file_that_cannot_be_read_is_named(self, tmp_path: Path) -> None:
        _file(tmp_path).symlink_to("/proc/self/mem")  # even root cannot read its first byte
        for operation in (loaded, fingerprint):
            with pytest.raises(CheckpointError, match=r"model\.safetensors: cannot be read \("):
                operation(tmp_path)

    def test_broken_symlink_is_named(self, tmp_path: Path) -> None:
        _file(tmp_path).symlink_to(tmp_path / "blob")
        with pytest.raises(CheckpointError, match=r"broken symbolic links \(model\.safetensors\)"):
            loaded(tmp_path)

    def test_a_pickle_is_never_opened(self, tmp_path: Path) -> None:
        trap, sprung = tmp_path / "pytorch_model.bin", tmp_path / "sprung"
        trap.write_bytes(
            b"cpathlib\nPath.touch\n(cpathlib\nPath\n(V" + str(sprung).encode() + b"\ntRtR."
        )
        with pytest.raises(CheckpointError, match=r"pytorch_model\.bin.*safetensors"):
            loaded(tmp_path)
        assert not sprung.exists()


def run_python(script: str) -> str:
    """Run a script in a new interpreter and return its output; fail if it fails."""
    result = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


WIDTH, DEPTH = 1600, 24
"""A stack of 24 kernels of 10 MB (float32): 246 MB in one leaf."""
MEMORY = f"""
import jax, jax.numpy as jnp
from pathlib import Path
from flax import nnx
from models.nn.layers.parameterised import linear
from models.nn.layers.scanned import stack
from models.weights.loader import load

class Network(nnx.Module):
    def __init__(self, rngs):
        one = lambda rngs: linear({WIDTH}, {WIDTH}, ("a", "b"), rngs=rngs, use_bias=False)
        self.blocks = stack(one, {DEPTH}, rngs=rngs)

def megabytes(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))

abstract = nnx.eval_shape(lambda: Network(nnx.Rngs(0)))
jax.block_until_ready(jax.device_put(jnp.ones(8)))
Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
before = megabytes("VmRSS")
network = load(abstract, Path(FOLDER), ((r"(\\d+)\\.weight", r"blocks.kernel[\\1]"),), dtype=DTYPE)
print(megabytes("VmHWM") - before)
print(jax.tree.leaves(nnx.state(network))[0].nbytes / 2**20)
"""


def hollow_checkpoint(folder: Path) -> None:
    """Write a sparse file of zeros. It needs no disk blocks, but its reader needs memory."""
    size = WIDTH * WIDTH * 4
    entries = {
        f"{layer}.weight": {
            "dtype": "F32",
            "shape": [WIDTH, WIDTH],
            "data_offsets": [layer * size, (layer + 1) * size],
        }
        for layer in range(DEPTH)
    }
    header = json.dumps(entries).encode()
    with _file(folder).open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + DEPTH * size)


def hollow_gguf(folder: Path) -> None:
    """Write the same file with numbers in Q8_0, as a single file of the component."""
    tools = GGUFWriter(folder / "header", "flux")
    for layer in range(DEPTH):
        shape = (WIDTH, WIDTH // 32 * 34)
        tools.add_tensor_info(
            f"{layer}.weight", shape, np.dtype(np.uint8), WIDTH * shape[1],
            raw_dtype=GGMLQuantizationType.Q8_0,
        )  # fmt: skip
    tools.write_header_to_file()
    tools.write_kv_data_to_file()
    tools.write_ti_data_to_file()
    tools.close()
    header = (folder / "header").read_bytes()
    with _file(folder).open("wb") as file:
        file.write(header)
        file.truncate(len(header) + 32 + DEPTH * WIDTH * (WIDTH // 32 * 34))


@pytest.mark.nightly
def test_peak_memory_of_gguf_is_the_model_and_one_tensor(tmp_path: Path) -> None:
    hollow_gguf(tmp_path)
    script = MEMORY.replace("FOLDER", repr(str(tmp_path))).replace("DTYPE", "jnp.bfloat16")
    peak_mb, model_mb = (float(line) for line in run_python(script).split())
    tensor_mb = WIDTH * WIDTH * 4 / 2**20
    assert model_mb == DEPTH * tensor_mb / 2
    # Each reader holds a piece as stored, and decoded. The package itself takes 20 MB.
    assert model_mb < peak_mb < model_mb + 2 * DiskFile.readers * PIECE / 2**20 + 4 * tensor_mb


@pytest.mark.parametrize("dtype", ["jnp.float32", "jnp.bfloat16"])
def test_peak_memory_is_the_model_and_the_current_read(tmp_path: Path, dtype: str) -> None:
    hollow_checkpoint(tmp_path)
    script = MEMORY.replace("FOLDER", repr(str(tmp_path))).replace("DTYPE", dtype)
    peak_mb, model_mb = (float(line) for line in run_python(script).split())
    tensor_mb = WIDTH * WIDTH * 4 / 2**20
    assert model_mb == DEPTH * tensor_mb / (1 if dtype == "jnp.float32" else 2)
    # The slack of two tensors is for the allocator and the libraries. A copy of the model is 12.
    assert model_mb < peak_mb < model_mb + DiskFile.readers * PIECE / 2**20 + 2 * tensor_mb
