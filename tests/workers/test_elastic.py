"""The same devices as another mesh: which layouts there are, and that nothing moves."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from models.sharding import Layout
from tests.parallel.layouts import layout
from workers.elastic import layouts_by_way, side_by_side
from workers.step_times import Way


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
def test_devices_of_one_row_go_to_others(parts: int, expected: dict[str, int]) -> None:
    whole = layout(cfg=2, context=4)
    other = side_by_side(whole, parts)
    assert sizes(other) == expected
    assert list(other.mesh.devices.flat) == list(whole.mesh.devices.flat)


def placed(layout: Layout, *axes: str) -> list[jax.Array]:
    sharding = NamedSharding(layout.mesh, PartitionSpec(*axes))
    return [jax.device_put(np.ones((8, 8), np.float32), sharding)]


def test_replicated_weights_allow_every_layout_of_their_devices() -> None:
    whole = layout(cfg=2, context=4)
    found = layouts_by_way(whole, placed(whole), [1, 2, 3, 4, 6])
    assert sorted(found) == [
        *(Way(1), Way(2), Way(2, 2), Way(3), Way(4), Way(4, 4), Way(6), Way(6, 2)),
    ]
    assert all(found[Way(size)] == whole for size in (1, 2, 3, 4, 6))


def test_weights_split_by_tensor_stay_where_they_are() -> None:
    whole = layout(context=4, tensor=2)
    assert Way(4, 4) in layouts_by_way(whole, placed(whole, "tensor"), [4])


def test_a_layout_that_would_move_weights_is_left_out() -> None:
    whole = layout(fsdp=2, context=4)
    assert list(layouts_by_way(whole, placed(whole, "fsdp"), [4])) == [Way(4)]
    assert Way(4, 4) in layouts_by_way(whole, placed(whole), [4])


def test_a_row_goes_from_one_layout_to_another_without_a_copy() -> None:
    whole = layout(cfg=2, context=4)
    other = side_by_side(whole, 8)
    (row,) = placed(whole)
    seen = jax.device_put(row, NamedSharding(other.mesh, PartitionSpec()))
    before, after = (
        [shard.data.unsafe_buffer_pointer() for shard in x.addressable_shards] for x in (row, seen)
    )
    assert before == after
