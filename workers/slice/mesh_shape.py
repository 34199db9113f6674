"""Sizes of a mesh slice's axes, without devices or JAX.

Each axis (models/parallel/mesh_axes.py) has a size inside a host or TPU slice (ICI) and a size
between them (DCN).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from models.parallel.mesh_axes import AXIS_NAMES, MESH_AXES

REST = -1
"""Size of the axis that takes the remaining devices."""
SLOTS = 4
"""Default number of requests denoised together."""


@dataclass(frozen=True)
class MeshShape:
    """Sizes of a slice's axes; unnamed axes have size 1.

    Args:
        ring: parts of the context that pass their keys and values around. Inside each part, tokens
            are exchanged for heads (Ulysses). None: the fewest parts that are a multiple of the
            hosts and leave groups that divide the heads.

    Raises: ValueError: an axis does not exist, or a size is invalid.
    """

    ici: Mapping[str, int] = field(default_factory=dict)
    dcn: Mapping[str, int] = field(default_factory=dict)
    ring: int | None = None

    def __post_init__(self) -> None:
        for kind, sizes in (("ici", self.ici), ("dcn", self.dcn)):
            for name, size in sizes.items():
                if name not in AXIS_NAMES:
                    raise ValueError(
                        f"{kind} axis {name!r} does not exist: {', '.join(AXIS_NAMES)}"
                    )
                if size < 1 and size != REST:
                    raise ValueError(f"{kind} axis {name} must be 1 or more, or -1, not {size}")
            if sum(size == REST for size in sizes.values()) > 1:
                raise ValueError(f"only one {kind} axis may be -1: {in_words(sizes)}")

    def over(self, devices: int, hosts: int = 1, heads: Collection[int] = ()) -> MeshShape:
        """Return the shape with every size set, for `devices` on each host.

        Args:
            heads: head counts of the attentions, which the shape must divide.

        Raises: ValueError: the sizes do not match, or do not divide the heads; states the numbers.
        """
        ici, dcn = filled("ici", self.ici, devices), filled("dcn", self.dcn, hosts)
        tensor = ici["tensor"] * dcn["tensor"]
        for count in sorted(heads):
            if count % tensor:
                raise ValueError(f"tensor {tensor} does not divide {count} attention heads")
        context = ici["context"] * dcn["context"]
        together = math.gcd(*heads) // tensor
        ring = self._ring(context, dcn["context"], together)
        if context % ring:
            raise ValueError(f"a ring of {ring} does not divide a context of {context}")
        if heads and together % (context // ring):
            raise ValueError(
                f"a context of {context} with a ring of {ring} swaps tokens for heads over "
                f"{context // ring} devices, which does not divide {heads_in_words(heads, tensor)}"
            )
        return MeshShape(ici, dcn, ring)

    def size(self, axis: str) -> int:
        """Return an axis's size, inside and between hosts."""
        return self.ici.get(axis, 1) * self.dcn.get(axis, 1)

    @property
    def devices(self) -> int:
        """Number of devices of the mesh, over all hosts."""
        return math.prod(map(self.size, AXIS_NAMES))

    @property
    def mesh_sizes(self) -> tuple[int, ...]:
        """Sizes of `MESH_AXES`, ICI times DCN; a context is a ring of Ulysses groups."""
        sizes = {axis: self.size(axis) for axis in AXIS_NAMES}
        ring = self.ring or 1
        sizes |= {"ring": ring, "ulysses": sizes["context"] // ring}
        return tuple(sizes[axis] for axis in MESH_AXES)

    @property
    def is_whole(self) -> bool:
        """Return whether every axis size is set, independently of the number of devices."""
        return REST not in (*self.ici.values(), *self.dcn.values())

    def __str__(self) -> str:
        """List the split axes, as in `cfg 2 · context 4 (ring 2)`."""
        sizes = {axis: self.size(axis) for axis in AXIS_NAMES if self.size(axis) != 1}
        if not sizes:
            return "one device"
        return in_words(sizes) + (f" (ring {self.ring})" if (self.ring or 1) > 1 else "")

    def _ring(self, context: int, hosts: int, heads: int) -> int:
        """Return the number of ring parts of the context axis.

        Args:
            heads: heads per tensor part, which Ulysses groups must divide; 0: any.
        """
        if self.ring is not None:
            return self.ring
        rings = (ring for ring in range(hosts, context + 1, hosts) if context % ring == 0)
        return next(ring for ring in rings if heads % (context // ring) == 0)


def filled(kind: str, sizes: Mapping[str, int], devices: int) -> dict[str, int]:
    """Return the size of every mesh axis; the axis of -1 gets the remaining devices.

    Raises: ValueError: the product differs from the number of devices.
    """
    named = {axis: sizes.get(axis, 1) for axis in AXIS_NAMES}
    product = math.prod(size for size in named.values() if size != REST)
    things = "devices" if kind == "ici" else "hosts"
    if REST in named.values():
        if devices % product:
            raise ValueError(
                f"{kind} {in_words(sizes)}: {product} does not divide {devices} {things}"
            )
        return {axis: devices // product if size == REST else size for axis, size in named.items()}
    if product != devices:
        raise ValueError(
            f"{kind} {in_words(sizes)} makes {product} {things}, but there are {devices}"
        )
    return named


def slots_of(slots: int | None, per_device_batch_size: float | None, shape: MeshShape) -> int:
    """Return the number of requests denoised together.

    Args:
        per_device_batch_size: may be a fraction: 0.25 on 4 devices is one request over four.

    Raises: ValueError: the batch is not an integer, or not divisible by `data`; states the numbers.
    """
    count = shape.devices
    if per_device_batch_size is not None:
        product = Fraction(str(per_device_batch_size)) * count
        if product.denominator != 1 or product < 1:
            raise ValueError(
                f"per_device_batch_size {per_device_batch_size:g} on {count} devices is a batch of "
                f"{float(product):g}, which is not whole"
            )
        if slots not in (None, int(product)):
            raise ValueError(
                f"per_device_batch_size {per_device_batch_size:g} on {count} devices is a batch of "
                f"{product}, but slots is {slots}: leave one of them out"
            )
        slots = int(product)
    data = shape.size("data")
    slots = slots or max(SLOTS, data)
    if slots % data:
        raise ValueError(f"{slots} slots cannot be divided evenly over data {data}")
    return slots


def in_words(sizes: Mapping[str, int]) -> str:
    """Format mesh axis sizes for messages, as in `cfg 2 · context 4`."""
    return " · ".join(f"{axis} {size}" for axis, size in sizes.items()) or "(no axes)"


def heads_in_words(heads: Collection[int], tensor: int) -> str:
    """Format the head counts of attention layers for messages."""
    counts = " or ".join(map(str, sorted(heads)))
    return f"{counts} attention heads" + (f" / tensor {tensor}" if tensor > 1 else "")
