"""Origin of a worker's outputs: its chips, region, checkpoint and software.

Used for metrics and the ledger, and for the verification of outputs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from importlib.metadata import version

import jax

from models.parallel.axis_rules import Layout
from models.spec.model_spec import ModelSpec
from service.jobs.model.job import MadeBy
from service.jobs.model.ledger import Origin
from service.settings.usage import UsageSettings
from workers import metrics
from workers.engine.step_metrics import layout_name
from workers.programs import aot_key
from workers.slice.device_chip import known_chip

CPU = "cpu"


def origin_of(spec: ModelSpec, layout: Layout, usage: UsageSettings) -> Origin:
    """Return where a worker runs, with all chips of its slice."""
    devices = list(layout.mesh.devices.flat)
    return Origin(
        chip_name(devices[0]),
        _chips(devices),
        usage.region,
        usage.spot,
        spec.fingerprint,
    )


def made_by(spec: ModelSpec, layout: Layout) -> MadeBy:
    """Return the facts that a worker's outputs depend on, except their requests."""
    device = layout.mesh.devices.flat[0]
    return MadeBy(
        checkpoint=spec.fingerprint,
        platform=device.platform,
        chip=chip_name(device),
        layout=layout_name(layout),
        jax=jax.__version__,
        programs=_programs(spec, layout),
    )


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


def chip_name(device: jax.Device) -> str:
    """Return a chip's name: the planner's if known, else the vendor's."""
    chip = known_chip(device)
    if chip is not None:
        return chip.name
    return CPU if device.platform == "cpu" else str(device.device_kind)


def _chips(devices: Sequence[jax.Device]) -> float:
    chips = (known_chip(device) for device in devices)
    return sum(1 if chip is None else chip.chips for chip in chips)


def show(model: str, layout: Layout, origin: Origin, sharing: int = 1) -> None:
    """Export the worker's origin as metrics.

    Args:
        sharing: number of models on the slice; each series gets an equal share of the chips.
    """
    spot, chips = str(origin.spot).lower(), f"{origin.chips:g}"
    metrics.worker_info.labels(
        model,
        origin.chip,
        chips,
        layout_name(layout),
        spot,
        origin.region or "",
        version("atelier"),
        origin.checkpoint,
    ).set(1)
    metrics.worker_chips.labels(model, origin.chip, spot).set(origin.chips / sharing)
