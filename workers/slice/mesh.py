"""Devices → mesh slices: each pool works on one slice, and sees no other."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
from jax.sharding import Mesh

from models.nn.kernels.xla import xla_kernel
from models.parallel import jax_internals
from models.parallel.axis_rules import Layout, auto_mesh
from workers.slice.mesh_shape import AXES, Shape


def make_mesh(shape: Shape, devices: Sequence[jax.Device]) -> Mesh:
    """The mesh of a slice, axes as `models.parallel.axis_rules.MESH_AXES` has them.

    Args:
        shape: with every size known.
    """
    ici, dcn = ([sizes[axis] for axis in AXES] for sizes in (shape.ici, shape.dcn))
    if math.prod(dcn) > 1:
        grid = jax_internals.create_hybrid_device_mesh(ici, dcn, devices, process_is_granule=True)
    else:
        grid = jax_internals.create_device_mesh(ici, devices, allow_split_physical_axes=True)
    return auto_mesh(grid.reshape(mesh_sizes(shape)))


def mesh_sizes(shape: Shape) -> tuple[int, ...]:
    """Of the axes that `models.parallel.axis_rules.MESH_AXES` names, ICI and DCN together."""
    data, fsdp, cfg, context, tensor = map(shape.size, AXES)
    ring = shape.ring or 1
    return data, fsdp, cfg, ring, context // ring, tensor


def one_device(device: jax.Device) -> Layout:
    """Nothing is split."""
    return Layout(make_mesh(Shape().over(1), [device]), xla_kernel)
