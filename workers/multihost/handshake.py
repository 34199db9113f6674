"""Handshake that compares the processes of a slice, and JSON outlines of requests."""

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
from models.interface.pipeline import Pipeline, PreparedRow, Step
from models.interface.step_program import StepProgram
from models.parallel.axis_rules import Layout
from service.settings.models import ModelSettings
from service.settings.pools import PoolSettings
from workers.engine.array_framing import element_type
from workers.programs import aot_key
from workers.programs.bucket_programs import Values

OF_PROGRAMS = {"mesh", "table", "slots", "per_device_batch_size", "batch_sizes"} | {
    *("elastic", "precision", "flags", "kernels")
}
"""Settings of a pool that determine its compiled programs."""
NO_PROGRAM = {"source", "base", "defaults", "warmup"}
"""Settings of a model that may differ between processes: paths and request defaults. The
fingerprint identifies the model."""


@dataclass(frozen=True)
class Handshake:
    """Properties that must be equal in all processes of a slice, or their programs deadlock."""

    jax: str
    """Version of JAX."""
    model: str
    """Fingerprint of the model."""
    mesh: dict[str, int]
    table: dict[str, list[str]]
    kernels: list[str]
    devices: list[int]
    sizes: list[int]
    """Sizes of compiled batches."""
    elastic: bool

    @classmethod
    def of(
        cls, pipeline: Pipeline, layout: Layout, sizes: Sequence[int], elastic: bool
    ) -> Handshake:
        """Return this process's handshake for its slice."""
        return cls(
            jax.__version__,
            pipeline.spec.fingerprint,
            dict(layout.mesh.shape),
            {axis: list(names) for axis, names in layout.table.items()},
            aot_key.kernels(layout),
            [device.id for device in layout.mesh.devices.flat],
            list(sizes),
            elastic,
        )

    def as_json(self) -> dict[str, Any]:
        """Return the handshake as JSON values."""
        return asdict(self)

    def difference(self, theirs: Mapping[str, Any]) -> str:
        """Describe the differences to the leader's handshake; empty if equal."""
        ours = self.as_json()
        return difference(ours, {name: theirs.get(name) for name in ours})


def settings_of(pool: PoolSettings, model: ModelSettings) -> dict[str, Any]:
    """Return everything that determines what a process loads and compiles, as JSON.

    Raises: CheckpointError: the model's files do not exist.
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
    """Return the fingerprint of a model's file or folder. Raises: CheckpointError."""
    return fingerprint(single_file(source) or resolve(source))


def _named(section: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{section}.{name}": value for name, value in settings.items()}


def difference(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """Describe how this process's settings differ from the leader's; empty if equal."""
    return "; ".join(
        f"{name} is {ours.get(name)} here and {theirs.get(name)} in the first process"
        for name in {**ours, **theirs}
        if ours.get(name) != theirs.get(name)
    )


def outline(prepared: PreparedRow) -> dict[str, Any]:
    """Return the part of a request that determines its programs, as JSON without array values."""
    values = {step.program: step.values for step in prepared.steps}
    return {
        "bucket": prepared.bucket,
        "step_bucket": prepared.step_bucket,
        "inputs": _kinds(prepared.inputs),
        "phases": {
            str(step_program): _kinds(of_phase) for step_program, of_phase in values.items()
        },
    }


def outlined(fields: Mapping[str, Any]) -> PreparedRow:
    """Return a stand-in request with that outline: zeros, and one step of each step kind."""
    steps = tuple(
        Step(StepProgram.parse(step_program), _zeros(kinds))
        for step_program, kinds in fields["phases"].items()
    )
    return PreparedRow(
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
    """Return arrays of zeros of these shapes and dtypes that occupy no memory."""
    return {
        name: np.broadcast_to(np.zeros((), element_type(dtype)), tuple(shape))
        for name, (dtype, shape) in kinds.items()
    }
