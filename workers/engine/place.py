"""Place of an engine: the devices it runs on, and what its outputs depend on besides requests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

import jax

from models.parallel.axis_rules import Layout
from models.spec.model_spec import ModelSpec
from service.jobs.model.job import MadeBy
from workers.engine.step_metrics import WHOLE, layout_name
from workers.programs import aot_key
from workers.slice.device_chip import known_chip

CPU = "cpu"


@dataclass(frozen=True)
class Place:
    """Devices of one engine, and what its outputs depend on besides requests."""

    kind: str
    """Vendor's name of the devices."""
    devices: int
    chips: float
    """Chips of these devices; on some TPUs a chip is two devices."""
    made_by: MadeBy
    """Facts that the engine's outputs depend on, except their requests."""

    @property
    def layout(self) -> str:
        """Mesh axes that partition the work, with their sizes, or `one device`."""
        return self.made_by.layout


def place_of(spec: ModelSpec, layout: Layout) -> Place:
    """Return the place of an engine on a mesh slice."""
    devices = list(layout.mesh.devices.flat)
    return Place(
        kind=devices[0].device_kind,
        devices=layout.mesh.size,
        chips=_chips(devices),
        made_by=MadeBy(
            checkpoint=spec.fingerprint,
            platform=devices[0].platform,
            chip=_chip_name(devices[0]),
            layout=layout_name(layout),
            jax=jax.__version__,
            programs=_programs(spec, layout),
        ),
    )


def place_without_programs(
    spec: ModelSpec, platform: str, kind: str, packages: Sequence[str], threads: int = 0
) -> Place:
    """Return the place of a backend that compiles nothing, on one device.

    Args:
        packages: software that its outputs depend on.
        threads: of a CPU, which sum in another order if they are more.
    """
    versions = {name: version(name) for name in packages}
    key = {"versions": versions, "kind": kind, "threads": threads, "configs": spec.config_digest}
    made_by = MadeBy(
        checkpoint=spec.fingerprint,
        platform=platform,
        chip=kind,
        layout=WHOLE,
        jax="",
        programs=hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest(),
    )
    return Place(kind=kind, devices=1, chips=1, made_by=made_by)


def _programs(spec: ModelSpec, layout: Layout) -> str:
    """Digest all inputs of compilation, independent of the devices' position in a machine."""
    devices = list(layout.mesh.devices.flat)
    key = {
        **aot_key.of_process(devices[0]),
        "layout": aot_key.of_layout(layout)
        | {"devices": [device.device_kind for device in devices]},
        "configs": spec.config_digest,
    }
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()


def _chip_name(device: jax.Device) -> str:
    """Return a chip's name: the planner's if known, else the vendor's."""
    chip = known_chip(device)
    if chip is not None:
        return chip.name
    return CPU if device.platform == "cpu" else str(device.device_kind)


def _chips(devices: Sequence[jax.Device]) -> float:
    chips = (known_chip(device) for device in devices)
    return sum(1 if chip is None else chip.chips for chip in chips)
