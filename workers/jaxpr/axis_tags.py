"""Tags of values in a traced program: the logical axes that each value may be split over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from models.parallel.axis_rules import STORED, Axes

Sizes = Mapping[str, int]
"""Logical axis → its length."""


@dataclass(frozen=True)
class Tag:
    """Split axes of one value in a traced program. Values computed from weights are weights."""

    sizes: Sizes = field(default_factory=dict)
    """Axes that an activation may be split over, with their sizes."""
    dims: Axes | None = None
    """Logical axis of each dimension of a weight; None: not a weight."""
    logits: bool = False
    """Whether it is attention's logits, which the serving kernels never write to memory."""

    @property
    def is_weight(self) -> bool:
        """Return whether the tagged value is a weight."""
        return self.dims is not None


def activation(tags: Iterable[Tag]) -> Tag:
    """Return the tag of a value computed from tagged values: split wherever an input is."""
    activations = [tag for tag in tags if not tag.is_weight]
    sizes = union(*(tag.sizes for tag in activations))
    return Tag(sizes, logits=any(tag.logits for tag in activations))


def union(*sizes: Sizes) -> Sizes:
    """Merge axis sizes, with the larger size of each axis."""
    joined: dict[str, int] = {}
    for axis_sizes in sizes:
        for axis, size in axis_sizes.items():
            joined[axis] = max(size, joined.get(axis, 0))
    return joined


def constrained(axes: Axes, shape: tuple[int, ...], tag: Tag) -> Tag:
    """Return a value's tag after a sharding constraint; unbatched values may lose the row axis."""
    if tag.is_weight:
        return Tag(dims=axes)
    sizes = {axis: size for axis, size in zip(axes, shape, strict=True) if axis is not None}
    return Tag(sizes, logits=tag.logits)


def reshaped(dims: Axes, before: tuple[int, ...], after: tuple[int, ...]) -> Axes:
    """Return a weight's axes after a reshape; a split dimension's axis moves to the first part."""
    result: list[str | None] = []
    left = [(size, axis) for size, axis in zip(before, dims, strict=True) if size != 1]
    place, covered = 0, 1
    for size in after:
        if size == 1 or place == len(left):
            result.append(None)
            continue
        result.append(left[place][1] if covered == 1 else None)
        covered *= size
        while place < len(left) and covered >= left[place][0]:
            covered //= left[place][0]
            place += 1
    return tuple(result)


def in_use(dims: Axes, shape: tuple[int, ...]) -> Sizes:
    """Return a weight's axes while its layer runs; axes that split storage only are gathered."""
    pairs = zip(dims, shape, strict=True)
    return {axis: size for axis, size in pairs if axis is not None and axis not in STORED}
