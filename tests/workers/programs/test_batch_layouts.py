"""Layouts of the same devices as another mesh: available layouts, and rows that do not move."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from models.parallel.axis_rules import Layout
from tests.parallel.layouts import layout
from tests.workers.toy import ToyPipeline
from workers.programs.batch_layouts import layouts_by_batch, side_by_side
from workers.programs.compiler import Compiler
from workers.programs.step_latency import BatchLayout


def sizes(layout: Layout) -> dict[str, int]:
    return {axis: size for axis, size in layout.mesh.shape.items() if size > 1}


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (2, {"data": 2, "cfg": 2, "ulysses": 2}),
        (4, {"data": 4, "cfg": 2}),
        (8, {"data": 8}),
    ],
)
def test_devices_of_a_row_are_assigned_to_others(parts: int, expected: dict[str, int]) -> None:
    full = layout(cfg=2, context=4)
    other = side_by_side(full, parts)
    assert sizes(other) == expected
    assert list(other.mesh.devices.flat) == list(full.mesh.devices.flat)


def test_each_batch_size_has_the_layout_with_a_part_for_each_row() -> None:
    full = layout(cfg=2, context=4)
    layouts = layouts_by_batch(full, [1, 2, 3, 4, 6], lambda other: True)
    assert sorted(layouts) == [
        *(
            BatchLayout(1),
            BatchLayout(2),
            BatchLayout(2, 2),
            BatchLayout(3),
            BatchLayout(4),
            BatchLayout(4, 4),
            BatchLayout(6),
            BatchLayout(6, 2),
        ),
    ]
    assert all(layouts[BatchLayout(size)] == full for size in (1, 2, 3, 4, 6))
    assert sizes(layouts[BatchLayout(6, 2)]) == {"data": 2, "cfg": 2, "ulysses": 2}


class Weighted(ToyPipeline):
    """Toy pipeline whose weights name their axes."""

    def __init__(self, *axes: str | None) -> None:
        super().__init__()
        self.weights = {
            name: nnx.Param(value, axes=axes if value.shape[1] % 8 == 0 else (None, None))
            for name, value in self.weights.items()
        }


@pytest.mark.parametrize(
    ("axes", "mesh", "elastic"),
    [
        ((None, None), {"cfg": 2, "context": 4}, True),
        (("embed", "heads"), {"context": 4, "tensor": 2}, True),
        (("embed", None), {"fsdp": 2, "context": 4}, False),
        ((None, "encoder"), {"cfg": 2, "context": 4}, True),
    ],
    ids=["replicated", "by tensor", "by fsdp", "over all devices"],
)
def test_a_layout_that_would_move_weights_is_left_out(
    axes: tuple[str | None, ...], mesh: dict[str, int], elastic: bool
) -> None:
    compiler = Compiler(Weighted(*axes), layout(**mesh))
    assert (BatchLayout(4, 4) in compiler.batch_layouts([4], elastic=True)) == elastic
    assert compiler.batch_layouts([1, 4], elastic=False) == [BatchLayout(1), BatchLayout(4)]


def test_row_moves_between_layouts_without_a_copy() -> None:
    full = layout(cfg=2, context=4)
    other = side_by_side(full, 8)
    everywhere = NamedSharding(full.mesh, PartitionSpec())
    row = jax.device_put(np.ones((8, 8), np.float32), everywhere)
    moved = jax.device_put(row, NamedSharding(other.mesh, PartitionSpec()))
    before, after = (
        [shard.data.unsafe_buffer_pointer() for shard in x.addressable_shards] for x in (row, moved)
    )
    assert before == after
