"""Devices → mesh slices: each pool works on one slice, and sees no other.

A slice has five axes, each with a size inside a host or TPU slice (ICI) and one between them
(DCN): `data` (rows), `fsdp` (weights, and the tokens that go with them), `cfg` (guidance passes),
`context` (tokens) and `tensor` (heads and feed-forward).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax
from jax.experimental import mesh_utils
from jax.sharding import Mesh

from models.nn.attention.xla import xla_kernel
from models.sharding import MESH_AXES, Layout

AXES = ("data", "fsdp", "cfg", "context", "tensor")
REST = -1
"""Size of the one axis that takes what is left."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a slice's axes; axes that are not named have size 1.

    Args:
        ring: parts of the context that pass their keys and values round; inside each part tokens
            are swapped for heads (Ulysses). None: as many as there are DCN parts.

    Raises: ValueError: an axis that does not exist, or a size that is none.
    """

    ici: Mapping[str, int]
    dcn: Mapping[str, int]
    ring: int | None = None

    def __post_init__(self) -> None:
        for kind, sizes in (("ici", self.ici), ("dcn", self.dcn)):
            for name, size in sizes.items():
                if name not in AXES:
                    raise ValueError(f"{kind} axis {name!r} does not exist: {', '.join(AXES)}")
                if size < 1 and size != REST:
                    raise ValueError(f"{kind} axis {name} must be 1 or more, or -1, not {size}")
            if sum(size == REST for size in sizes.values()) > 1:
                raise ValueError(f"only one {kind} axis may be -1: {said(sizes)}")

    def over(self, devices: int, hosts: int = 1) -> Shape:
        """With every size known, over so many devices on each of so many hosts (or TPU slices).

        Raises: ValueError: the sizes do not make that many; says the numbers.
        """
        ici, dcn = filled("ici", self.ici, devices), filled("dcn", self.dcn, hosts)
        context = ici["context"] * dcn["context"]
        ring = dcn["context"] if self.ring is None else self.ring
        if context % ring:
            raise ValueError(f"a ring of {ring} does not divide a context of {context}")
        return Shape(ici, dcn, ring)

    def size(self, axis: str) -> int:
        return self.ici.get(axis, 1) * self.dcn.get(axis, 1)

    @property
    def devices(self) -> int:
        return math.prod(map(self.size, AXES))


def filled(kind: str, sizes: Mapping[str, int], devices: int) -> dict[str, int]:
    """Every axis's size, the one of -1 having what the others leave.

    Raises: ValueError: the product is not the number of devices.
    """
    named = {axis: sizes.get(axis, 1) for axis in AXES}
    known = math.prod(size for size in named.values() if size != REST)
    things = "devices" if kind == "ici" else "hosts"
    if REST in named.values():
        if devices % known:
            raise ValueError(f"{kind} {said(sizes)}: {known} does not divide {devices} {things}")
        return {axis: devices // known if size == REST else size for axis, size in named.items()}
    if known != devices:
        raise ValueError(f"{kind} {said(sizes)} makes {known} {things}, but there are {devices}")
    return named


def said(sizes: Mapping[str, int]) -> str:
    """`cfg 2 · context 4`, as messages have it."""
    return " · ".join(f"{axis} {size}" for axis, size in sizes.items()) or "(no axes)"


def make_mesh(shape: Shape, devices: Sequence[jax.Device]) -> Mesh:
    """The mesh of a slice, axes as `models.sharding.MESH_AXES` has them.

    Args:
        shape: with every size known.
    """
    ici, dcn = ([sizes[axis] for axis in AXES] for sizes in (shape.ici, shape.dcn))
    if math.prod(dcn) > 1:
        grid = mesh_utils.create_hybrid_device_mesh(ici, dcn, devices, process_is_granule=True)
    else:
        grid = mesh_utils.create_device_mesh(ici, devices, allow_split_physical_axes=True)
    sizes = [grid.shape[AXES.index(axis)] for axis in AXES]
    ring = shape.ring or 1
    data, fsdp, cfg, context, tensor = sizes
    return Mesh(grid.reshape(data, fsdp, cfg, ring, context // ring, tensor), MESH_AXES)


def one_device(device: jax.Device) -> Layout:
    """Nothing is split."""
    return Layout(make_mesh(Shape({}, {}).over(1), [device]), xla_kernel)


def over_hosts() -> Layout:
    """Every device of every process; the context is split over all of them."""
    shape = Shape({"context": -1}, {"context": -1})
    whole = shape.over(jax.local_device_count(), jax.process_count())
    return Layout(make_mesh(whole, jax.devices()), xla_kernel)
