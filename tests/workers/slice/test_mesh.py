from __future__ import annotations

import jax

from models.parallel.mesh_axes import MESH_AXES
from workers.slice.mesh import make_mesh, one_device
from workers.slice.mesh_shape import MeshShape


def test_single_device_splits_nothing() -> None:
    mesh = one_device(jax.devices()[-1]).mesh
    assert list(mesh.devices.flat) == [jax.devices()[-1]]
    assert dict(mesh.shape) == dict.fromkeys(MESH_AXES, 1)


def test_a_mesh_has_the_sizes_of_its_shape() -> None:
    mesh = make_mesh(MeshShape({"cfg": 2, "context": -1}).over(8), jax.devices())
    assert dict(mesh.shape) == {**dict.fromkeys(MESH_AXES, 1), "cfg": 2, "ulysses": 4}


def test_a_context_is_rings_of_ulysses() -> None:
    mesh = make_mesh(MeshShape({"context": 8}, ring=4).over(8), jax.devices())
    assert (mesh.shape["ring"], mesh.shape["ulysses"]) == (4, 2)
