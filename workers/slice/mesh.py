"""Construction of JAX meshes over a slice's devices."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
from jax.sharding import Mesh

from models.nn.kernels.xla import xla_kernel
from models.parallel import jax_internals
from models.parallel.axis_rules import Layout, auto_mesh
from models.parallel.mesh_axes import AXIS_NAMES
from workers.slice.mesh_shape import MeshShape


def make_mesh(shape: MeshShape, devices: Sequence[jax.Device]) -> Mesh:
    """Build the mesh of a slice, with the axes of `models.parallel.mesh_axes.MESH_AXES`.

    Args:
        shape: mesh shape with every size set.
    """
    ici, dcn = ([sizes[axis] for axis in AXIS_NAMES] for sizes in (shape.ici, shape.dcn))
    if math.prod(dcn) > 1:
        grid = jax_internals.create_hybrid_device_mesh(ici, dcn, devices, process_is_granule=True)
    else:
        grid = jax_internals.create_device_mesh(ici, devices, allow_split_physical_axes=True)
    return auto_mesh(grid.reshape(shape.mesh_sizes))


def one_device(device: jax.Device) -> Layout:
    """Build a layout of one device, which splits nothing."""
    return Layout(make_mesh(MeshShape().over(1), [device]), xla_kernel)
