"""Parts of leaves from files read by row: the bytes that each process of a slice reads."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from safetensors.numpy import save_file

from models.checkpoint.direct_io import BLOCK, STRETCH, BufferPool, DiskFile, Memory, Take
from models.checkpoint.key_mapping import Target
from models.checkpoint.safetensors import ComponentFiles, Filling, open_tensors
from models.parallel.axis_rules import auto_mesh
from models.weights.assignment import Sources
from models.weights.device_transfer import Leaf, OnDevice, part_of, stored_place
from models.weights.loader import transferred_arrays

LAYERS, INTO, OUT = 2, 512, 4096


class Counted(DiskFile):
    bytes = 0

    def read(self, start: int, stop: int, take: Take) -> Memory:
        self.bytes += stop - start
        return super().read(start, stop, take)


@pytest.fixture(scope="module")
def stored() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(LAYERS, OUT, INTO)).astype(np.float32)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory, stored: np.ndarray) -> Path:
    path = tmp_path_factory.mktemp("lay") / "model.safetensors"
    save_file({str(layer): array for layer, array in enumerate(stored)}, path)
    return path


def sources(path: Path, file: DiskFile, transposed: bool) -> Sources:
    with ExitStack() as files:
        tensors = open_tensors(ComponentFiles("x", (path,)), files)
    goals = (Target("kernel", layer, 0, transposed) for layer in range(LAYERS))
    return {
        goal.layer: Filling(replace(tensors[str(goal.layer)], file=file), goal, None)
        for goal in goals
    }


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_any_part_of_a_stack(path: Path, stored: np.ndarray, axis: int, transposed: bool) -> None:
    file = Counted(path)
    stack = stored if transposed else stored.transpose(0, 2, 1)
    leaf = Leaf(stack.shape, stack.dtype, sources(path, file, transposed), True, None)
    half = stack.shape[axis] // 2
    index = tuple((half if at == axis else 0, size) for at, size in enumerate(stack.shape))
    part, works = part_of(leaf, index)
    for work in works:
        work()
    file.close()
    np.testing.assert_array_equal(part, stack[tuple(itertools.starmap(slice, index))])
    by_row = axis in (0, 1 if transposed else 2)
    assert file.bytes == stack.nbytes / (2 if by_row else 1)


def test_truncated_file_raises(path: Path) -> None:
    file = DiskFile(path)
    with pytest.raises(OSError, match="the file ends"):
        file.read(0, path.stat().st_size + BLOCK, lambda size: np.empty(size, np.uint8))
    file.close()


def test_sent_arrays_have_the_transposed_sharding() -> None:
    mesh = auto_mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("a", "b"))
    place = NamedSharding(mesh, PartitionSpec(None, "a", "b"))
    placement = stored_place(place, 2, True, True)
    assert placement == NamedSharding(mesh, PartitionSpec("b", "a"))
    window = NamedSharding(mesh, PartitionSpec(None, None, "a"))
    placement = stored_place(window, 4, False, True)
    assert placement == NamedSharding(mesh, PartitionSpec(None, "a", None, None))


def test_returned_memory_is_reused() -> None:
    pool = BufferPool(most=4 * BLOCK)
    small, large = pool.take(BLOCK), pool.take(3 * BLOCK)
    assert all(memory.ctypes.data % BLOCK == 0 for memory in (small, large))
    for memory in (small, large[8:].view(np.uint16).reshape(2, -1)):  # like a file's array
        pool.give(memory)
    reused = pool.take(2 * BLOCK)
    assert reused.ctypes.data == large.ctypes.data
    assert pool.take(BLOCK).ctypes.data == small.ctypes.data


def test_pending_transfers_respect_the_memory_limit() -> None:
    pool = BufferPool(most=2 * BLOCK)
    lent = [pool.take(BLOCK) for _ in range(3)]
    for memory in lent:
        pool.give(memory)
    reused = {pool.take(BLOCK).ctypes.data for _ in range(2)}
    assert reused == {memory.ctypes.data for memory in lent[1:]}


@pytest.mark.parametrize("in_flight", [1, 50 << 20, 1 << 30])
def test_a_tensor_is_read_by_several_threads(tmp_path: Path, in_flight: int) -> None:
    """Read in stretches. A tensor may be larger than the limit of bytes in flight."""
    numbers = np.random.default_rng(1)
    stored = {
        name: numbers.normal(size=shape).astype(np.float32)
        for name, shape in {
            "first": (3, 5),
            "large": (2 * STRETCH // 4096 + 7, 1024),
            "also large": (STRETCH // 4096 + 1, 1024),
            "last": (STRETCH // 4096, 1024),
        }.items()
    }
    path = tmp_path / "model.safetensors"
    save_file(stored, path)
    with ExitStack() as files:
        tensors = open_tensors(ComponentFiles("x", (path,)), files)
        pool = BufferPool(in_flight)
        leaves = []
        for name, array in stored.items():
            filling = Filling(tensors[name], Target(name, None, 0, False), None)
            leaf = Leaf(array.shape, array.dtype, {None: filling}, False, None)
            leaves.append(OnDevice(leaf, pool))
        parts = [len(list(leaf.reads())) for leaf in leaves]
        loaded = list(transferred_arrays(leaves, in_flight))
    assert parts == [1, 3, 2, 2], "the last one does not begin where a stretch does"
    for output, expected in zip(loaded, stored.values(), strict=True):
        np.testing.assert_array_equal(output, expected)
