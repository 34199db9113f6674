"""What the processes of a slice have to agree on, and what they tell each other of a shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax
import numpy as np

from models.pipeline import Pipeline, Prepared, Step
from models.sharding import Layout
from workers.hosts.wire import element_type
from workers.shape import Values


@dataclass(frozen=True)
class Terms:
    """Processes that differ in any of these would run other programs, and wait for ever."""

    jax: str
    """Its version."""
    model: str
    """Its fingerprint."""
    mesh: dict[str, int]
    table: dict[str, list[str]]
    kernel: str
    devices: list[int]
    sizes: list[int]
    """Of compiled batches."""
    elastic: bool

    @classmethod
    def of(cls, pipeline: Pipeline, layout: Layout, sizes: Sequence[int], elastic: bool) -> Terms:
        return cls(
            jax.__version__,
            pipeline.spec.fingerprint,
            dict(layout.mesh.shape),
            {axis: list(names) for axis, names in layout.table.items()},
            str(getattr(layout.kernel, "__name__", layout.kernel)),
            [device.id for device in layout.mesh.devices.flat],
            list(sizes),
            elastic,
        )

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def difference(self, theirs: Mapping[str, Any]) -> str:
        """What is not the same, in words; empty: nothing."""
        return "; ".join(
            f"{name} is {mine} here and {theirs.get(name)} in the first process"
            for name, mine in self.as_json().items()
            if mine != theirs.get(name)
        )


def outline(prepared: Prepared) -> dict[str, Any]:
    """All that decides which programs a picture needs, as JSON: no values."""
    values = {step.phase: step.values for step in prepared.steps}
    return {
        "bucket": prepared.bucket,
        "inputs": _kinds(prepared.inputs),
        "phases": {phase: _kinds(of_phase) for phase, of_phase in values.items()},
    }


def outlined(fields: Mapping[str, Any]) -> Prepared:
    """A picture of that outline: zeros, and one step of each phase."""
    steps = tuple(Step(phase, _zeros(kinds)) for phase, kinds in fields["phases"].items())
    return Prepared(fields["bucket"], _zeros(fields["inputs"]), steps, width=0, height=0, seed=0)


def _kinds(arrays: Values) -> dict[str, Sequence[Any]]:
    return {name: (array.dtype.name, array.shape) for name, array in arrays.items()}


def _zeros(kinds: Mapping[str, Sequence[Any]]) -> dict[str, np.ndarray]:
    """Arrays without memory of their own."""
    return {
        name: np.broadcast_to(np.zeros((), element_type(dtype)), tuple(shape))
        for name, (dtype, shape) in kinds.items()
    }
