"""Sizes of a slice: a free axis is computed, and sizes that do not fit are rejected with the
numbers."""

from __future__ import annotations

import pytest

from workers.slice.mesh_shape import MeshShape, slots_of


def test_one_axis_takes_the_remaining_devices() -> None:
    shape = MeshShape({"cfg": 2, "context": -1}).over(8)
    assert (shape.size("context"), shape.devices, shape.ring) == (4, 8, 1)


def test_rings_span_hosts_and_ulysses_stays_within() -> None:
    shape = MeshShape({"context": 4}, {"context": -1}).over(4, hosts=2)
    assert (shape.size("context"), shape.ring) == (8, 2)


@pytest.mark.parametrize(
    ("heads", "sizes", "ring"),
    [
        ({24}, {"context": 8}, 1),
        ({12}, {"context": 8}, 2),
        ({5, 10, 20}, {"context": 8}, 8),
        ({24}, {"context": 4, "tensor": 2}, 1),
        ({12}, {"context": 4, "tensor": 2}, 2),
        ((), {"context": 8}, 1),
    ],
)
def test_indivisible_heads_use_rings(heads: set[int], sizes: dict[str, int], ring: int) -> None:
    assert MeshShape(sizes).over(8, heads=heads).ring == ring


@pytest.mark.parametrize(
    ("ici", "dcn", "ring", "message"),
    [
        ({"cfg": 3}, {}, None, "ici cfg 3 makes 3 devices, but there are 8"),
        ({"cfg": 3, "tensor": -1}, {}, None, "3 does not divide 8 devices"),
        ({"context": 8}, {"data": 2}, None, "dcn data 2 makes 2 hosts, but there are 1"),
        ({"context": 8}, {}, 3, "a ring of 3 does not divide a context of 8"),
        ({"heads": 8}, {}, None, "ici axis 'heads' does not exist: data, fsdp, cfg, context"),
        ({"cfg": 0}, {}, None, "ici axis cfg must be 1 or more, or -1, not 0"),
        ({"cfg": -1, "data": -1}, {}, None, "only one ici axis may be -1: cfg -1 · data -1"),
        ({"tensor": 8}, {}, None, "tensor 8 does not divide 12 attention heads"),
        ({"context": 8}, {}, 1, "over 8 devices, which does not divide 12 attention heads"),
        ({"context": 4, "tensor": 2}, {}, 1, "4 devices, .* 12 attention heads / tensor 2"),
    ],
)
def test_sizes_that_make_no_slice_are_refused_with_the_numbers(
    ici: dict[str, int], dcn: dict[str, int], ring: int | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        MeshShape(ici, dcn, ring).over(8, heads={12})


@pytest.mark.parametrize(
    ("slots", "per_device", "sizes", "expected"),
    [
        (None, None, {"context": 4}, 4),
        (None, None, {"data": 8}, 8),
        (6, None, {"cfg": 2}, 6),
        (None, 0.25, {"context": 4}, 1),
        (None, 0.1, {"context": 10}, 1),
        (None, 2, {"data": 4}, 8),
        (8, 2, {"data": 4}, 8),
    ],
)
def test_slots_are_the_product(
    slots: int | None, per_device: float | None, sizes: dict[str, int], expected: int
) -> None:
    assert slots_of(slots, per_device, MeshShape(sizes)) == expected


@pytest.mark.parametrize(
    ("slots", "per_device", "sizes", "message"),
    [
        (None, 0.25, {"context": 6}, "0.25 on 6 devices is a batch of 1.5, which is not whole"),
        (None, 0.125, {"context": 4}, "a batch of 0.5, which is not whole"),
        (3, 0.5, {"context": 4}, "a batch of 2, but slots is 3"),
        (3, None, {"data": 2}, "3 slots cannot be divided evenly over data 2"),
    ],
)
def test_batches_that_are_not_whole_are_refused_with_the_numbers(
    slots: int | None, per_device: float | None, sizes: dict[str, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        slots_of(slots, per_device, MeshShape(sizes))


def test_mesh_shape_names_its_axes() -> None:
    assert str(MeshShape({"cfg": 2, "context": 4}, ring=2)) == "cfg 2 · context 4 (ring 2)"
    assert str(MeshShape()) == "one device"
