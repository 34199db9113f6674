"""Agreement between the processes of a slice, and what they tell each other of a bucket."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from models.checkpoint.fingerprint import fingerprint
from models.checkpoint.hub import resolve, single_file
from models.interface.pipeline import Pipeline, Prepared, Step
from models.interface.step_program import StepProgram
from models.parallel.axis_rules import Layout
from service.settings.models import ModelSettings
from service.settings.pools import PoolSettings
from workers.engine.array_framing import element_type
from workers.programs import aot_key
from workers.programs.bucket_programs import Values

OF_PROGRAMS = {"mesh", "table", "slots", "per_device_batch_size", "batch_sizes"} | {
    *("elastic", "precision", "flags")
}
"""Settings of a pool that decide what it compiles."""
NO_PROGRAM = {"source", "base", "defaults", "warmup"}
"""Settings of a model that each process may have its own way: where it lies, what is asked of it.
What it is, its fingerprint says."""


@dataclass(frozen=True)
class Handshake:
    """Processes that differ in any of these would run other programs, and wait for ever."""

    jax: str
    """Version of JAX."""
    model: str
    """Fingerprint of the model."""
    mesh: dict[str, int]
    table: dict[str, list[str]]
    kernel: str
    devices: list[int]
    sizes: list[int]
    """Sizes of compiled batches."""
    elastic: bool

    @classmethod
    def of(
        cls, pipeline: Pipeline, layout: Layout, sizes: Sequence[int], elastic: bool
    ) -> Handshake:
        """Return what this process is, to be compared with the others."""
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
        """Return the terms as JSON values."""
        return asdict(self)

    def difference(self, theirs: Mapping[str, Any]) -> str:
        """Describe what differs; empty: nothing."""
        ours = self.as_json()
        return difference(ours, {name: theirs.get(name) for name in ours})


def settings_of(pool: PoolSettings, model: ModelSettings) -> dict[str, Any]:
    """Return all that decides what a process loads and compiles, before it does, as JSON.

    Raises: CheckpointError: the model's files are not there.
    """
    packages = (name.rpartition("-") for name in aot_key.packages())
    return {
        "Python": platform.python_version(),
        **{f"package {name}": version for name, _, version in packages},
        "code": aot_key.code(Path(__file__).parents[2])[:12],
        "fingerprint of the weights": weights(model.source)[:12],
        **_named("models", model.model_dump(mode="json", exclude=NO_PROGRAM)),
        **_named("pools", pool.model_dump(mode="json", include=OF_PROGRAMS)),
    }


def weights(source: str) -> str:
    """The fingerprint of a model's file or folder. Raises: CheckpointError: it is not there."""
    return fingerprint(single_file(source) or resolve(source))


def _named(section: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{section}.{name}": value for name, value in settings.items()}


def difference(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """Describe what differs in the first process; empty: nothing."""
    return "; ".join(
        f"{name} is {ours.get(name)} here and {theirs.get(name)} in the first process"
        for name in {**ours, **theirs}
        if ours.get(name) != theirs.get(name)
    )


def outline(prepared: Prepared) -> dict[str, Any]:
    """Return all that decides which programs an image needs, as JSON: no values."""
    values = {step.phase: step.values for step in prepared.steps}
    return {
        "bucket": prepared.bucket,
        "step_bucket": prepared.step_bucket,
        "inputs": _kinds(prepared.inputs),
        "phases": {str(phase): _kinds(of_phase) for phase, of_phase in values.items()},
    }


def outlined(fields: Mapping[str, Any]) -> Prepared:
    """An image of that outline: zeros, and one step of each phase."""
    steps = tuple(
        Step(StepProgram.parse(phase), _zeros(kinds)) for phase, kinds in fields["phases"].items()
    )
    return Prepared(
        fields["bucket"],
        _zeros(fields["inputs"]),
        steps,
        width=0,
        height=0,
        seed=0,
        step_bucket=fields["step_bucket"],
    )


def _kinds(arrays: Values) -> dict[str, Sequence[Any]]:
    return {name: (array.dtype.name, array.shape) for name, array in arrays.items()}


def _zeros(kinds: Mapping[str, Sequence[Any]]) -> dict[str, np.ndarray]:
    """Arrays without memory of their own."""
    return {
        name: np.broadcast_to(np.zeros((), element_type(dtype)), tuple(shape))
        for name, (dtype, shape) in kinds.items()
    }
