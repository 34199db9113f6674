"""TPUs that are not there: libtpu's compiler describes them, and compiles for them."""

from __future__ import annotations

import os
from collections.abc import Sequence

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

FLAG_NAMES = {"tpu7x": "v7x"}
"""Chips that the table of flags calls otherwise."""


def prepare(topology: Topology, family: str) -> None:
    """Set what libtpu reads when it is loaded.

    No questions to a machine that is none of Google's, and the flags that pools of this family have
    on this chip. Before anything is compiled for TPUs.

    Raises: PlanError: there is no libtpu.
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
    name = FLAG_NAMES.get(topology.chip.name, topology.chip.name)
    known = xla_flags.chosen(name, family)
    libtpu_alone = {kind: known[kind] for kind in known if kind == "libtpu"}
    os.environ.update(xla_flags.environment(libtpu_alone, os.environ))


def devices_of(topology: Topology, slices: int = 1) -> Sequence[jax.Device]:
    """Return the devices of a slice, as libtpu describes them.

    Raises: PlanError: this libtpu does not know such a slice.
    """
    several = {"num_slices": slices} if slices > 1 else {}
    try:
        described = jax_internals.get_topology_desc(
            platform="tpu", topology_name=topology.name, **several
        )
    except Exception as error:  # the plugin's own kinds, all of them RuntimeError or ValueError
        raise PlanError(f"libtpu does not know {topology.name}: {error}") from error
    return list(described.devices)


def mesh_of(shape: MeshShape, devices: Sequence[jax.Device]) -> Mesh:
    """Build a mesh as a pool does, but for DCN: its slices are none of processes here."""
    if all(size == 1 for size in shape.dcn.values()):
        return make_mesh(shape, devices)
    ici, dcn = ([sizes[axis] for axis in AXIS_NAMES] for sizes in (shape.ici, shape.dcn))
    grid = jax_internals.create_hybrid_device_mesh(
        ici, dcn, devices, allow_split_physical_axes=True
    )
    return auto_mesh(grid.reshape(shape.mesh_sizes))
