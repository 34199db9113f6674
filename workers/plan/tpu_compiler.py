"""libtpu's compiler for absent TPUs: describes their devices, and compiles for them."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from models.parallel import jax_internals
from models.parallel.axis_rules import auto_mesh
from models.parallel.mesh_axes import AXIS_NAMES
from service.settings.installation import how_to_install
from workers.slice import xla_flags
from workers.slice.mesh import make_mesh
from workers.slice.mesh_shape import MeshShape
from workers.slice.topology import PlanError, Topology

CHIPS_OF_HOST, DIMENSIONS = 8, 3
FLAG_NAMES = {"tpu7x": "v7x"}
"""Chips with another name in the table of flags."""


def prepare(topology: Topology, family: str) -> None:
    """Set the environment for libtpu before it is loaded.

    It disables queries of Google's metadata server. It also sets the XLA flags of a family's pools
    on this chip. Call it before anything is compiled for TPUs.

    Raises: PlanError: libtpu is not installed.
    """
    prepare_environment(topology)
    flags = xla_flags.chosen(flag_name(topology), family)
    libtpu_alone = {kind: flags[kind] for kind in flags if kind == "libtpu"}
    os.environ.update(xla_flags.environment(libtpu_alone, os.environ))


def prepare_environment(topology: Topology) -> None:
    """Set the environment that libtpu needs on a machine without TPUs.

    Raises: PlanError: not installed.

    Call it before libtpu is loaded.
    """
    try:
        import libtpu  # noqa: F401
    except ModuleNotFoundError:
        raise PlanError(
            f"compiling for TPUs needs libtpu: {how_to_install('plan')}; "
            "without it, --reckon estimates without a compiler"
        ) from None
    quiet = {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": f"{topology.chip.name}-{topology.devices}",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }
    for variable, value in quiet.items():
        os.environ.setdefault(variable, value)


def flag_name(topology: Topology) -> str:
    """Return the name of a topology's chips in the table of XLA flags."""
    return FLAG_NAMES.get(topology.chip.name, topology.chip.name)


def devices_of(topology: Topology, slices: int = 1) -> Sequence[jax.Device]:
    """Return the devices of a slice, as libtpu describes them.

    Raises: PlanError: this libtpu does not support the slice.
    """
    return _described(topology, **({"num_slices": slices} if slices > 1 else {}))


def devices_of_host(topology: Topology) -> Sequence[jax.Device]:
    """Return the devices of a slice whose chips are all on one host.

    Raises: PlanError: this libtpu does not support the slice, or hosts have fewer chips.
    """
    sides = [int(side) for side in topology.name.partition(":")[2].split("x")]
    if math.prod(sides) > CHIPS_OF_HOST:
        raise PlanError(f"{topology.name}: a host has at most {CHIPS_OF_HOST} chips")
    bounds = (*sides, *[1] * (DIMENSIONS - len(sides)))
    return _described(topology, chips_per_host_bounds=bounds)


def _described(topology: Topology, **how: Any) -> Sequence[jax.Device]:
    """Return the devices that libtpu describes for a topology. Raises: PlanError."""
    try:
        described = jax_internals.get_topology_desc(
            platform="tpu", topology_name=topology.name, **how
        )
    except Exception as error:  # the plugin raises RuntimeError or ValueError
        raise PlanError(f"libtpu does not support {topology.name}: {error}") from error
    return list(described.devices)


def mesh_of(shape: MeshShape, devices: Sequence[jax.Device]) -> Mesh:
    """Build a mesh like a pool, except that DCN slices need not be processes."""
    if all(size == 1 for size in shape.dcn.values()):
        return make_mesh(shape, devices)
    ici, dcn = ([sizes[axis] for axis in AXIS_NAMES] for sizes in (shape.ici, shape.dcn))
    grid = jax_internals.create_hybrid_device_mesh(
        ici, dcn, devices, allow_split_physical_axes=True
    )
    return auto_mesh(grid.reshape(shape.mesh_sizes))
