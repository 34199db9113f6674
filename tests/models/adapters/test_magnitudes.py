"""DoRA: kernels whose vectors have an adapter's magnitudes, fused and by row from pages.

`tests/parity/test_adapters_peft.py` compares the magnitudes of outputs with PEFT.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.adapters.banks import page_arrays, page_axis, with_banks
from models.adapters.files.adapter import (
    Adapter,
    Changes,
    LayerPosition,
    LowRank,
    Magnitude,
    StoredArray,
)
from models.adapters.fuse import fusing
from models.interface.adapters import OWNERS, PAGES, SCALES, row_adapters, with_adapters
from models.interface.pipeline import Step
from models.interface.step_program import StepProgram
from models.nn.layers.convolution import convolved
from models.nn.layers.parameterised import conv, from_heads, linear, linear_concatenated, to_heads
from models.nn.quant.matmul import EightBitKernel
from models.parallel.trace_options import trace_options
from models.spec.lora import PAGE_RANK, RequestedLora, always

IN, OUT, HEADS, ROWS = 12, 20, 4, 3
RELATIVE = 1e-5
"""Tolerance of float32 sums of dozens of numbers. A wrong term would differ by about 0.1."""
NAMES = ("flat", "window")


class Layers(nnx.Module):
    """A linear layer and a convolution."""

    def __init__(self, *, rngs: nnx.Rngs, param_dtype: Any = jnp.float32) -> None:
        kinds: Any = {"rngs": rngs, "param_dtype": param_dtype}
        self.flat = linear(IN, OUT, ("embed", "mlp"), **kinds)
        self.window = conv(IN, OUT, (3, 3), padding=((1, 1), (1, 1)), **kinds)
        layers: tuple[Any, Any] = (self.flat, self.window)
        for number, layer in enumerate(layers):
            layer.bias.set_value(numbers(OUT, seed=90 + number).astype(param_dtype))


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng([seed, *shape]).standard_normal(shape, np.float32)


def network(dtype: Any = jnp.float32) -> Layers:
    return Layers(rngs=nnx.Rngs(0), param_dtype=dtype)


def change(
    rank: int, window: Sequence[int], seed: int, of_inputs: bool | None, network: Layers
) -> LowRank:
    """Return a random change; None: without magnitudes."""
    down = StoredArray(numbers(rank, IN, *window, seed=seed) / 3)
    up = StoredArray(numbers(OUT, rank, seed=seed))
    magnitude = None
    if of_inputs is not None:
        layer = network.window if window else network.flat
        kernel = np.asarray(layer.kernel[...], np.float32)
        axis = kernel.ndim - (2 if of_inputs else 1)
        norms = np.sqrt(np.square(kernel).sum(tuple({*range(kernel.ndim)} - {axis})))
        magnitude = Magnitude(norms * (1 + 0.4 * numbers(len(norms), seed=seed)), of_inputs)
    return LowRank(down, up, 0.7, magnitude=magnitude)


def changes(
    rank: int, seed: int, of_inputs: bool | None, of: Layers | None = None
) -> dict[LayerPosition, LowRank]:
    network_ = of or network()
    return {
        LayerPosition(name): change(rank, window, seed + number, of_inputs, network_)
        for number, (name, window) in enumerate(((NAMES[0], ()), (NAMES[1], (3, 3))))
    }


def decomposed(kernel: np.ndarray, change: LowRank, scale: float) -> np.ndarray:
    """Return the kernel [*window, in, out] with a change, by LyCORIS' formula at scale 1 and
    PEFT's at others."""
    delta = np.tensordot(change.up.float32() * change.scale, change.down.float32(), 1)
    total = kernel + scale * np.moveaxis(delta, (0, 1), (-1, -2))
    if change.magnitude is None:
        return total
    axis = total.ndim - (2 if change.magnitude.of_inputs else 1)
    others = tuple({*range(total.ndim)} - {axis})
    norms = np.sqrt(np.square(total).sum(others, keepdims=True))
    return total / norms * change.magnitude.values.reshape(norms.shape)


def with_kernels(adapters: Sequence[tuple[Changes, float]], dtype: Any = jnp.float32) -> Layers:
    """Return the network with the adapters' differences added to its kernels."""
    merged = network(dtype)
    for name in NAMES:
        layer = getattr(merged, name)
        kernel = np.asarray(layer.kernel[...], np.float32)
        differences: Any = (
            decomposed(kernel, change, scale) - kernel
            for adapter, scale in adapters
            if isinstance(change := adapter[LayerPosition(name)], LowRank)
        )
        layer.kernel.set_value(jnp.asarray(kernel + sum(differences), dtype))
    return merged


def filled(network: Layers, adapters: Sequence[Changes]) -> tuple[Layers, list[int]]:
    """Return the network with the adapters in its banks, and their numbers of pages."""
    counts = [Adapter({"net": item}).pages for item in adapters]
    banked, first = with_banks(network, sum(counts)), 0
    for item, count in zip(adapters, counts, strict=True):
        for path, array in page_arrays(banked, item, count).items():
            name, _, end = path.split(".")
            leaf = getattr(getattr(banked, name).bank, end)
            places = (slice(None),) * page_axis(leaf) + (slice(first, first + count),)
            leaf.set_value(leaf.get_value().at[places].set(array))
        first += count
    return banked, counts


def requested(
    adapters: Sequence[Changes], counts: Sequence[int], scales: Sequence[float]
) -> list[RequestedLora]:
    return [
        RequestedLora(
            name=f"{number}",
            digest=f"{number}",
            pages=count,
            networks=("net",),
            scales=always(scale),
            has_magnitudes=Adapter({"net": item}).has_magnitudes,
        )
        for number, (item, count, scale) in enumerate(zip(adapters, counts, scales, strict=True))
    ]


def rows_of(requests: Sequence[Sequence[RequestedLora]], of_all: Sequence[int]) -> Any:
    """Return the adapters of rows that each use some of the adapters in the banks."""
    columns = []
    for loras in requests:
        (step,) = with_adapters([Step(StepProgram("net"), {})], loras)
        starts = np.cumsum([0, *of_all])
        pages = [starts[int(lora.name)] + page for lora in loras for page in range(lora.pages)]
        values = {**step.values}
        values[PAGES] = np.array([pages[int(page)] for page in values[PAGES]], np.float32)
        columns.append(values)
    return row_adapters({name: np.stack([row[name] for row in columns]) for name in columns[0]})


def call(layer: Any, x: Any) -> np.ndarray:
    run = layer if x.ndim == 3 else partial(convolved, layer)
    return np.asarray(jax.jit(run)(x), np.float32)


def inputs(name: str, rows: int = ROWS) -> Any:
    return numbers(rows, *((5, IN) if name == "flat" else (4, 6, IN)), seed=7)


def gap(output: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(output - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("of_inputs", [False, True])
@pytest.mark.parametrize("scale", [1.0, -0.6])
def test_fused_kernels_have_the_magnitudes(of_inputs: bool, scale: float) -> None:
    adapter, plain = changes(5, 1, of_inputs), network()

    class Pipeline:
        graphs = type("Graphs", (), {"net": nnx.split(plain)[0]})
        weights = type("Weights", (), {"net": nnx.split(plain)[1]})

    fuse = fusing(Adapter({"net": adapter}), scale, Pipeline)["net"]
    expected = with_kernels([(adapter, scale)])
    for name in NAMES:
        kernel = np.asarray(getattr(plain, name).kernel[...])
        fused = fuse(f"{name}.kernel", jnp.asarray(kernel))
        assert gap(np.asarray(fused), np.asarray(getattr(expected, name).kernel[...])) < RELATIVE
        assert gap(np.asarray(fused), kernel) > 0.1


@pytest.mark.parametrize("name", NAMES)
def test_each_row_has_the_magnitudes_of_its_adapters(name: str) -> None:
    """Rows whose adapters have several pages, either kind of magnitudes or none, alone and
    combined."""
    adapters = [
        changes(PAGE_RANK + 3, 1, of_inputs=False),
        changes(4, 20, of_inputs=False),
        changes(4, 30, of_inputs=None),
        changes(PAGE_RANK + 3, 40, of_inputs=True),
    ]
    banked, counts = filled(network(), adapters)
    assert counts == [3, 2, 1, 3]
    scales = [[0.8, -0.7, 0.5, 0.0], [0.0, 0.0, 0.5, 0.9], [0.0, 0.0, 1.2, 0.0]]
    rows = rows_of([requested(adapters, counts, row) for row in scales], counts)
    x = inputs(name)
    with replace(trace_options(), adapters=rows).active():
        output = call(getattr(banked, name), x)
    for number, row in enumerate(scales):
        used = [(item, s) for item, s in zip(adapters, row, strict=True) if s]
        expected = call(getattr(with_kernels(used), name), x[number : number + 1])
        assert gap(output[number : number + 1], expected) < RELATIVE
        assert gap(call(getattr(network(), name), x[number : number + 1]), expected) > 0.1


@pytest.mark.parametrize("of_inputs", [False, True])
def test_layers_by_heads_and_of_several_parts(of_inputs: bool) -> None:
    adapter = changes(4, 1, of_inputs)
    banked, counts = filled(network(), [adapter])
    rows = rows_of([requested([adapter], counts, [0.8])] * ROWS, counts)
    merged, x = with_kernels([(adapter, 0.8)]).flat, jnp.asarray(inputs("flat"))
    expected = np.asarray(merged(x))

    @jax.jit
    def outputs(x: Any) -> Any:
        return (
            to_heads(banked.flat, x, HEADS).reshape(expected.shape),
            from_heads(banked.flat, x.reshape(*x.shape[:2], 3, -1)),
            linear_concatenated(banked.flat, [x[..., :5], x[..., 5:]]),
        )

    with replace(trace_options(), adapters=rows).active():
        for output in outputs(x):
            assert gap(np.asarray(output), expected) < RELATIVE


def test_single_row_matches_batched_row() -> None:
    """The prompts and strips of a row share its pages."""
    adapter = changes(4, 1, False)
    banked, counts = filled(network(), [adapter])
    (lora,) = requested([adapter], counts, [0.8])
    for name in NAMES:
        x, rows = inputs(name, 4), rows_of([[lora]], counts)
        with replace(trace_options(), adapters=rows).active():
            output = call(getattr(banked, name), x)
        with replace(trace_options(), adapters=rows_of([[lora]] * 2, counts)).active():
            assert gap(call(getattr(banked, name), x), output) < RELATIVE
        expected = call(getattr(with_kernels([(adapter, 0.8)]), name), x)
        assert gap(output, expected) < RELATIVE


@pytest.mark.parametrize("where", ["beside", "instead"])
def test_kernels_of_8_bits(where: str) -> None:
    """The norms are those of the exact kernel, or of the 8-bit kernel if there is no other."""
    rounded = network()
    kernel = np.asarray(rounded.flat.kernel[...])
    scale = np.abs(kernel).max(0) / 127
    values = np.round(kernel / scale)
    rounded.flat.eight = EightBitKernel(
        nnx.Param(jnp.asarray(values, jnp.int8), axes=("embed", "mlp"), exact=jnp.float32),
        nnx.Param(jnp.asarray(scale), axes=("mlp",)),
    )
    if where == "instead":
        rounded.flat.kernel = nnx.data(None)
    adapter = changes(4, 1, of_inputs=False)
    banked, counts = filled(rounded, [adapter])
    rows = rows_of([requested([adapter], counts, [0.8])] * ROWS, counts)
    x, place = inputs("flat"), LayerPosition("flat")
    with replace(trace_options(), adapters=rows, quant="w8a16").active():
        output = call(banked.flat, x)
    exact = decomposed(kernel if where == "beside" else values * scale, adapter[place], 0.8)
    expected = x @ exact + np.asarray(rounded.flat.bias[...])
    assert gap(output, expected) < (RELATIVE if where == "instead" else 0.02)


def test_bfloat16_pages_hold_magnitudes_more_exactly_than_it_can() -> None:
    adapter = changes(4, 1, False, network(jnp.bfloat16))
    banked, counts = filled(network(jnp.bfloat16), [adapter])
    rows = rows_of([requested([adapter], counts, [1.0])] * ROWS, counts)
    x = inputs("flat")
    with replace(trace_options(), adapters=rows).active():
        output = call(banked.flat, x)
    expected = call(with_kernels([(adapter, 1.0)], jnp.bfloat16).flat, x)
    assert gap(output, expected) < 2**-7
    page = np.asarray(banked.flat.bank.up[...][counts[0] - 1], np.float32)
    magnitude = adapter[LayerPosition("flat")].magnitude
    assert magnitude is not None
    np.testing.assert_allclose(page[0] + page[1], magnitude.values, rtol=2**-15)


def test_steps_with_magnitudes_have_programs_of_their_own() -> None:
    lora = RequestedLora(
        name="a", digest="a", pages=3, networks=("net",), scales=always(0.5), has_magnitudes=True
    )
    plain = lora.model_copy(update={"name": "b", "pages": 1, "has_magnitudes": False})
    step = Step(StepProgram("net"), {})
    (both,), (without,) = with_adapters([step], [plain, lora]), with_adapters([step], [plain])
    assert both.values[PAGES].tolist() == [0, 1, 2, 3]
    assert both.values[SCALES].tolist() == [0.5, 0.5, 0.5, 0]
    assert both.values[OWNERS].tolist() == [-1, 3, 3, -1]
    assert OWNERS not in without.values and not without.program.adapter_magnitudes
    text = "net adapters-4 magnitudes"
    assert (str(both.program), StepProgram.parse(text)) == (text, both.program)
