"""Adapter banks on the device: contents of pages, and steps that still read overwritten pages."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from models.adapters.banks import page_axis, with_banks
from models.adapters.files.adapter import Adapter, LayerPosition, LowRank, StoredArray
from models.nn.layers.parameterised import conv, linear
from models.nn.layers.scanned import stack
from models.parallel.axis_rules import Layout
from models.parallel.row_adapters import AdapterPages
from workers.programs.adapter_banks import AdapterBanks
from workers.programs.bucket_programs import BucketPrograms
from workers.programs.device_weights import Weights
from workers.programs.launcher import OneHost

PAGES, WIDTH, LAYERS, WINDOW = 3, 4, 2, (3, 3)
AXES = ("embed", "mlp")


class Network(nnx.Module):
    """Network with a stack of layers, a single layer and a convolution."""

    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.blocks = stack(partial(linear, WIDTH, WIDTH, AXES), LAYERS, rngs=rngs)
        self.alone = linear(WIDTH, 5, AXES, rngs=rngs)
        self.window = conv(WIDTH, WIDTH, WINDOW, rngs=rngs)


class Networks(NamedTuple):
    first: Any
    second: Any


class Banks:
    """Banks of two networks. With `on_host`, the second network's kernels are in host memory."""

    def __init__(self, layout: Layout, on_host: bool = False) -> None:
        graphs, weights = zip(
            *(nnx.split(with_banks(Network(), PAGES)) for _ in range(2)), strict=True
        )
        self.pipeline = SimpleNamespace(graphs=Networks(*graphs), weights=Networks(*weights))
        if on_host:
            for _, leaf in nnx.to_flat_state(weights[1]):
                if not isinstance(leaf, AdapterPages):
                    leaf.set_value(np.array(leaf.get_value()))
        count = len(jax.tree.leaves(self.pipeline.weights))
        places = [NamedSharding(layout.mesh, PartitionSpec())] * count
        self.weights = Weights("toy", self.pipeline.weights, places, [False] * count)
        self.banks = AdapterBanks(self.pipeline, self.weights)

    def bring(self, adapter: Adapter, pages: Sequence[int]) -> int:
        """Write an adapter, and return how many arrays were written."""
        written = list(self.banks.arrays(adapter, pages))
        for update in written:
            self.banks.write(*update)
        return len(written)

    def page(self, number: int) -> Mapping[str, np.ndarray]:
        """Return the contents of one page of each array."""
        return {
            name: np.take(np.asarray(self.weights.common[place]), number, self.axis(place))
            for name, place in self.banks._indices.items()
        }

    def axis(self, place: int) -> int:
        return self.banks._axes[place]


@pytest.fixture
def banks(layout: Layout) -> Banks:
    return Banks(layout)


def low_rank(seed: int, rank: int, outputs: int = WIDTH, window: tuple[int, ...] = ()) -> LowRank:
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> StoredArray:
        return StoredArray(np.asarray(rng.standard_normal(shape), np.float32))

    return LowRank(draw(rank, WIDTH, *window), draw(outputs, rank), 0.5, draw(outputs))


def large(rank: int = 20) -> Adapter:
    """Return an adapter that changes every layer of both networks, and their biases."""
    changes = {
        **{LayerPosition("blocks", number): low_rank(number, rank) for number in range(LAYERS)},
        LayerPosition("alone"): low_rank(5, rank, 5),
        LayerPosition("window"): low_rank(6, rank, window=WINDOW),
    }
    return Adapter({"first": changes, "second": changes})


def small() -> Adapter:
    """Return an adapter that changes one layer of a stack of the first network."""
    return Adapter({"first": {LayerPosition("blocks", 1): low_rank(9, 3)}})


def assert_same(actual: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> None:
    assert actual.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(actual[name], array, err_msg=name)


def test_page_contains_nothing_of_its_previous_adapter(banks: Banks, layout: Layout) -> None:
    """The previous adapter changed more layers, more ranks, biases, and another network."""
    fresh = Banks(layout)
    fresh.bring(small(), [0])
    banks.bring(large(), [2, 0])
    before = banks.page(2)
    banks.bring(small(), [0])
    assert_same(banks.page(0), fresh.page(0))
    assert_same(banks.page(2), before)
    assert all(array.any() for array in before.values()), "nothing was there to be left"


def test_pages_of_an_adapter_are_in_rank_order(banks: Banks, layout: Layout) -> None:
    """The order is the same in any pages."""
    other = Banks(layout)
    banks.bring(large(), [2, 0])
    other.bring(large(), [0, 1])
    assert_same(banks.page(2), other.page(0))
    assert_same(banks.page(0), other.page(1))
    assert not any(array.any() for array in banks.page(1).values())


def test_arrays_that_stay_zero_are_not_written(banks: Banks) -> None:
    arrays = len(banks.banks._indices)
    assert banks.bring(large(), [0, 1]) == arrays
    assert banks.bring(small(), [2]) == 3
    for update in banks.banks.empty():
        banks.banks.write(*update)
    assert not any(array.any() for array in banks.page(0).values())
    assert banks.bring(small(), [0]) == 3, "the page was emptied"


@pytest.mark.parametrize("pages", [[1], [1, 0]], ids=str)
def test_running_steps_read_unchanged_pages(banks: Banks, pages: list[int]) -> None:
    """The arrays are written while the steps run."""
    banks.bring(large(), [0, 1])
    places = [*banks.banks._indices.values()]
    arrays = [banks.weights.common[place] for place in places]
    copies = [np.array(leaf) for leaf in arrays]

    @jax.jit
    def step(leaves: list[jax.Array], x: jax.Array) -> list[jax.Array]:
        for _ in range(4):
            x = x @ x / len(x)
        return [leaf * x[0, 0].astype(leaf.dtype) for leaf in leaves]

    x = jnp.ones((2048, 2048))
    results = step(arrays, x)
    banks.bring(large(16 * len(pages)), pages)
    assert all(leaf.is_deleted() for leaf in arrays), "copied"
    for result, before, place in zip(results, copies, places, strict=True):
        np.testing.assert_array_equal(np.asarray(result), before)
        assert not np.array_equal(np.asarray(banks.weights.common[place]), before)


def test_no_launch_while_a_page_is_written(banks: Banks) -> None:
    """Programs of three threads read the banks' arrays, which are deleted once they are written."""
    launcher, ended = OneHost(), threading.Event()
    places = [*banks.banks._indices.values()]
    total = jax.jit(lambda leaves: sum(leaf.sum() for leaf in leaves))
    programs = BucketPrograms("any")
    launch = launcher.show(programs, "decode", lambda weights: total([weights[p] for p in places]))
    write = launcher.write(banks.banks.write)

    def launch_on() -> int:
        count = 0
        while not ended.is_set():
            launch(banks.weights.common).block_until_ready()
            count += 1
        return count

    with ThreadPoolExecutor(3) as threads:
        running = [threads.submit(launch_on) for _ in range(3)]
        try:
            for number in range(20):
                for item in banks.banks.arrays(large(), [number % 2, 2]):
                    write(*item)
        finally:
            ended.set()
        assert all(item.result() > 0 for item in running)


def test_pipeline_keeps_only_the_shapes_of_its_banks(banks: Banks) -> None:
    """Arrays in the pipeline would stay on the device, in addition to the adapters' arrays."""
    leaves = [leaf for state in banks.pipeline.weights for _, leaf in nnx.to_flat_state(state)]
    for leaf in leaves:
        kind = jax.ShapeDtypeStruct if isinstance(leaf, AdapterPages) else jax.Array
        assert isinstance(leaf.get_value(), kind)
    shapes = {leaf.shape[page_axis(leaf)] for leaf in leaves if isinstance(leaf, AdapterPages)}
    assert shapes == {PAGES}


def test_swapped_network_keeps_its_banks(layout: Layout) -> None:
    """Pages written while the network is on the device are there after its return, and never
    deleted."""
    banks = Banks(layout, on_host=True)
    weights = banks.weights
    assert weights.is_swapped("second") and not weights.is_swapped("first")
    weights.load_expert("second")
    banks.bring(large(), [0, 1])
    places = set(banks.banks._indices.values())
    assert all(weights.load_expert("second")[place] is weights.common[place] for place in places)
    contents = {place: np.asarray(weights.common[place]) for place in places}
    weights._free()
    again = weights.load_expert("second")
    for place in places:
        np.testing.assert_array_equal(np.asarray(again[place]), contents[place])
