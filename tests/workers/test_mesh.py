from __future__ import annotations

import jax
import pytest

from models.sharding import MESH_AXES
from workers.mesh import Shape, make_mesh, one_device


def test_one_device_splits_nothing() -> None:
    mesh = one_device(jax.devices()[-1]).mesh
    assert list(mesh.devices.flat) == [jax.devices()[-1]]
    assert dict(mesh.shape) == dict.fromkeys(MESH_AXES, 1)


def test_one_axis_takes_what_is_left() -> None:
    shape = Shape({"cfg": 2, "context": -1}, {}).over(8)
    assert (shape.size("context"), shape.devices, shape.ring) == (4, 8, 1)
    mesh = make_mesh(shape, jax.devices())
    assert dict(mesh.shape) == {**dict.fromkeys(MESH_AXES, 1), "cfg": 2, "ulysses": 4}


def test_rings_go_between_hosts_and_ulysses_inside() -> None:
    shape = Shape({"context": 4}, {"context": -1}).over(4, hosts=2)
    assert (shape.size("context"), shape.ring) == (8, 2)
    chosen = Shape({"context": 8}, {}, ring=4).over(8)
    assert make_mesh(chosen, jax.devices()).shape["ring"] == 4


@pytest.mark.parametrize(
    ("ici", "dcn", "ring", "said"),
    [
        ({"cfg": 3}, {}, None, "ici cfg 3 makes 3 devices, but there are 8"),
        ({"cfg": 3, "tensor": -1}, {}, None, "3 does not divide 8 devices"),
        ({"context": 8}, {"data": 2}, None, "dcn data 2 makes 2 hosts, but there are 1"),
        ({"context": 8}, {}, 3, "a ring of 3 does not divide a context of 8"),
        ({"heads": 8}, {}, None, "ici axis 'heads' does not exist: data, fsdp, cfg, context"),
        ({"cfg": 0}, {}, None, "ici axis cfg must be 1 or more, or -1, not 0"),
        ({"cfg": -1, "data": -1}, {}, None, "only one ici axis may be -1: cfg -1 · data -1"),
    ],
)
def test_sizes_that_make_no_slice_are_refused_with_the_numbers(
    ici: dict[str, int], dcn: dict[str, int], ring: int | None, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        Shape(ici, dcn, ring).over(8)
