"""Adapter banks: the arrays on their pages, and the layers' outputs row by row."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.adapters.banks import page_arrays, page_axis, with_banks
from models.adapters.files.adapter import Changes, LayerPosition, LowRank, StoredArray
from models.adapters.layer_names import adaptable
from models.loading.abstract import abstract_module
from models.nn.layers.convolution import convolved
from models.nn.layers.parameterised import conv, linear
from models.nn.layers.scanned import stack
from models.parallel.row_adapters import RowAdapters
from models.parallel.trace_options import trace_options
from models.spec.lora import PAGE_RANK
from models.weights.quantize import Rounding

IN, OUT, LAYERS, PAGES = 6, 5, 3, 4
RELATIVE = 1e-5
"""Tolerance of float32 sums of dozens of numbers. A wrong term would differ by about 1."""


class Layers(nnx.Module):
    """A stack of linear layers, a single linear layer, and convolutions."""

    def __init__(self, *, rngs: nnx.Rngs, param_dtype: Any = jnp.float32) -> None:
        make: Any = {"rngs": rngs, "param_dtype": param_dtype}
        self.blocks = stack(
            partial(linear, IN, OUT, ("embed", "mlp")), LAYERS, rngs=rngs, param_dtype=param_dtype
        )
        self.alone = linear(IN, OUT, ("embed", "mlp"), **make)
        self.same = conv(IN, OUT, (3, 3), padding=((1, 1), (1, 1)), **make)
        self.halved = conv(IN, OUT, (3, 3), strides=2, padding=((0, 1), (0, 1)), **make)
        self.patches = conv(IN, OUT, (1, 2, 2), strides=(1, 2, 2), **make)


WINDOWS = {"same": (3, 3), "halved": (3, 3), "patches": (1, 2, 2)}


def change(rank: int, window: tuple[int, ...] = (), seed: int = 0, scale: float = 1.5) -> LowRank:
    rng = np.random.default_rng(seed)
    down, up, bias = (
        rng.standard_normal(shape, np.float32) for shape in ((rank, IN, *window), (OUT, rank), OUT)
    )
    return LowRank(StoredArray(down), StoredArray(up), scale, StoredArray(bias), 0.5)


def every(rank: int, seed: int = 0) -> Changes:
    return {
        place: change(rank, shape.window, seed + number)
        for number, (place, shape) in enumerate(adaptable(network()))
    }


def network() -> Layers:
    return Layers(rngs=nnx.Rngs(0))


def filled(adapters: list[Changes]) -> Layers:
    """Return a network with banks of four pages, filled with adapters on consecutive pages."""
    banked, first = with_banks(network(), PAGES), 0
    leaves = {".".join(map(str, path)): leaf for path, leaf in nnx.to_flat_state(nnx.state(banked))}
    for changes in adapters:
        count = -(-max(change.up.shape[1] for change in changes.values()) // PAGE_RANK)
        for path, array in page_arrays(banked, changes, count).items():
            axis = page_axis(leaves[path])
            pages = (slice(None),) * axis + (slice(first, first + count),)
            leaves[path].set_value(leaves[path].get_value().at[pages].set(array))
        first += count
    nnx.update(
        banked, nnx.from_flat_state([(tuple(_parts(p)), leaf) for p, leaf in leaves.items()])
    )
    return banked


def _parts(path: str) -> list[str | int]:
    return [int(part) if part.isdecimal() else part for part in path.split(".")]


def merged(name: str, change: LowRank, scale: float) -> Any:
    """Return a layer with an adapter added to its kernel and bias."""
    layer = getattr(network(), name)
    delta = np.tensordot(change.up.float32(), change.down.float32(), 1)  # [out, in, *window]
    kernel = np.moveaxis(delta, (0, 1), (-1, -2))
    layer.kernel.set_value(layer.kernel[...] + scale * change.scale * kernel)
    assert change.bias is not None
    layer.bias.set_value(layer.bias[...] + scale * change.bias_scale * change.bias.float32())
    return layer


@pytest.mark.parametrize("name", ["alone", *WINDOWS])
def test_each_row_is_changed_by_its_own_adapter(name: str) -> None:
    adapters = [every(3), every(PAGE_RANK + 2, seed=9)]
    layer = getattr(filled(adapters), name)
    rows = RowAdapters(jnp.array([[0, 0], [1, 2], [0, 3]]), jnp.array([[0.7, 0], [2, 2], [0, 0.0]]))
    sizes = {"alone": (4,), "patches": (2, 4, 6)}.get(name, (4, 6))
    x = jax.random.normal(jax.random.key(1), (3, *sizes, IN))
    call = (lambda layer, x: layer(x)) if name == "alone" else convolved
    with replace(trace_options(), adapters=rows).active():
        output = call(layer, x)
    place = LayerPosition(name)
    expected = [
        call(merged(name, adapters[0][place], 0.7), x[:1]),
        call(merged(name, adapters[1][place], 2.0), x[1:2]),
        call(getattr(network(), name), x[2:]),
    ]
    error = np.abs(np.asarray(output) - np.concatenate(expected)).max()
    assert error < RELATIVE * np.abs(output).max()


@pytest.mark.parametrize(
    ("name", "strips"), [("alone", 1), *((name, 1) for name in WINDOWS), ("same", 2), ("halved", 2)]
)
def test_single_row_matches_batched_row(name: str, strips: int) -> None:
    """Pages are gathered once for all prompts and strips, and then used as a convolution kernel."""
    layer = getattr(filled([every(PAGE_RANK + 2)]), name)
    rows = RowAdapters(jnp.array([[0, 1]]), jnp.array([[0.7, 0.7]]))
    sizes = {"alone": (4,), "patches": (2, 4, 6)}.get(name, (4, 6))
    x = jax.random.normal(jax.random.key(1), (2 * strips, *sizes, IN))
    call = (lambda layer, x: layer(x)) if name == "alone" else convolved
    with replace(trace_options(), adapters=rows, strips=strips).active():
        output = call(layer, x)
    with replace(trace_options(), adapters=rows.of_batch(2), strips=strips).active():
        expected = call(layer, x)
    with replace(trace_options(), strips=strips).active():
        plain = call(layer, x)
    error = np.abs(np.asarray(output - expected)).max()
    assert error < RELATIVE * np.abs(output).max() < np.abs(output - plain).max()


@pytest.mark.parametrize("name", ["alone", *WINDOWS])
def test_unused_bank_changes_no_bit(name: str) -> None:
    sizes = {"alone": (4,), "patches": (2, 4, 6)}.get(name, (4, 6))
    x = jnp.ones((1, *sizes, IN))
    call = (lambda layer, x: layer(x)) if name == "alone" else convolved
    output = call(getattr(filled([every(3)]), name), x)
    np.testing.assert_array_equal(output, call(getattr(network(), name), x))


KINDS: dict[str, Any] = {"F32": np.float32, "F16": np.float16, "BF16": jnp.bfloat16}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("scale", [1.0, 0.37])
def test_pages_store_factors_of_any_dtype(kind: str, dtype: Any, scale: float) -> None:
    low_rank = change(PAGE_RANK + 3, (3, 3), scale=scale)

    def stored(array: StoredArray) -> StoredArray:
        numbers = array.array.astype(KINDS[kind])
        return StoredArray(numbers.view(np.uint16) if kind == "BF16" else numbers)

    assert low_rank.bias is not None
    low_rank = replace(
        low_rank, down=stored(low_rank.down), up=stored(low_rank.up), bias=stored(low_rank.bias)
    )
    banked = with_banks(abstract_module(Layers, param_dtype=dtype), PAGES)
    arrays = page_arrays(banked, {LayerPosition("same"): low_rank}, 2)
    down, up, bias = (arrays[f"same.bank.{end}"] for end in ("down", "up", "bias"))
    assert (down.shape, up.shape, bias.shape) == ((2, 16, 3, 3, IN), (2, 16, OUT), (2, OUT))
    assert {down.dtype, up.dtype, bias.dtype} == {np.dtype(dtype)}
    expected = np.zeros((32, OUT), np.float32)
    expected[: low_rank.rank] = low_rank.up.float32().T * np.float32(scale)
    np.testing.assert_array_equal(up.reshape(32, OUT), expected.astype(dtype))
    expected = np.zeros((32, 3, 3, IN), np.float32)
    expected[: low_rank.rank] = low_rank.down.float32().transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(down.reshape(32, 3, 3, IN), expected.astype(dtype))


def test_pages_of_layers_without_changes_are_zero() -> None:
    banked = with_banks(network(), PAGES)
    arrays = page_arrays(banked, {LayerPosition("blocks", 1): change(2)}, 1)
    assert {path for path, array in arrays.items() if array.any()} == {
        f"blocks.bank.{end}" for end in ("down", "up", "bias")
    }
    assert [array.any() for array in arrays["blocks.bank.down"]] == [False, True, False]
    assert len(arrays) == 3 * 5


@pytest.mark.parametrize("where", ["beside", "instead"])
@pytest.mark.parametrize("kind", [jnp.int8, jnp.float8_e4m3fn])
def test_layers_in_8_bits_have_the_same_banks(where: Any, kind: Any) -> None:
    exact = with_banks(abstract_module(Layers, param_dtype=jnp.bfloat16), PAGES)
    rounded = Rounding(where, kind).of(abstract_module(Layers, param_dtype=jnp.bfloat16))

    def banks(of: Layers) -> dict[str, Any]:
        return {
            ".".join(map(str, path)): (leaf.shape, leaf.dtype, leaf.axes)
            for path, leaf in nnx.to_flat_state(nnx.state(of))
            if "bank" in path
        }

    assert banks(with_banks(rounded, PAGES)) == banks(exact)
    assert list(adaptable(rounded)) == list(adaptable(exact))


def test_banks_of_a_device_network_are_device_arrays() -> None:
    banked = with_banks(network(), PAGES)
    bank = banked.same.bank
    assert bank is not None
    assert isinstance(bank.down.get_value(), jax.Array)
    assert bank.down.axes == (None, None, None, None, "conv_in")
    assert bank.up.axes == (None, None, "conv_out")
