"""Description of a worker's machine: on its metrics page, and in the usage ledger."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any, cast

import jax
import numpy as np
import pytest
from prometheus_client import REGISTRY

from models.parallel.axis_rules import Layout
from service.jobs.model.ledger import Origin
from service.settings.usage import UsageSettings
from tests.parallel.layouts import layout as parallel
from tests.workers.toy import SPEC
from workers import metrics
from workers.engine import place
from workers.engine.place import place_of
from workers.pool.origin import origin_of, show
from workers.slice.mesh import one_device

USAGE = UsageSettings(region="europe-west4", spot=True)


@dataclass(frozen=True)
class Device:
    device_kind: str
    platform: str


def a_layout(*devices: Device) -> Layout:
    mesh = SimpleNamespace(
        devices=np.array(devices, object), shape={"tensor": len(devices)}, size=len(devices)
    )
    return cast(Layout, SimpleNamespace(mesh=mesh))


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices may be only described: their programs are not digested."""
    monkeypatch.setattr(place, "_programs", lambda spec, layout: "")


@pytest.mark.usefixtures("described")
@pytest.mark.parametrize(
    "kind, platform, chip, chips",
    [
        ("NVIDIA H100 80GB HBM3", "gpu", "h100", 4),
        ("TPU v6 lite", "tpu", "v6e", 4),
        ("TPU v4", "tpu", "v4", 2),  # two devices a chip
        ("NVIDIA Something New", "gpu", "NVIDIA Something New", 4),
        ("cpu", "cpu", "cpu", 4),
    ],
)
def test_a_slices_chips(kind: str, platform: str, chip: str, chips: int) -> None:
    layout = a_layout(*[Device(kind, platform)] * 4)
    assert origin_of(place_of(SPEC, layout), USAGE) == Origin(
        chip, chips, "europe-west4", True, "toy"
    )


def test_metrics_page_has_the_origin(layout: Layout) -> None:
    here = place_of(SPEC, layout)
    origin = origin_of(here, USAGE)
    show("shown", here, origin)
    labels: dict[str, Any] = {
        "model": "shown",
        "chip": "cpu",
        "chips": "1",
        "layout": "one device",
        "spot": "true",
        "region": "europe-west4",
        "version": version("atelier"),
        "checkpoint": "toy",
    }
    assert REGISTRY.get_sample_value("atelier_worker_info", labels) == 1
    of_chip = {name: labels[name] for name in ("model", "chip", "spot")}
    assert REGISTRY.get_sample_value("atelier_worker_chips", of_chip) == 1


def test_provenance_of_outputs(layout: Layout) -> None:
    """Outputs depend on the configs, the layout and XLA's flags, but not on the place of the
    devices."""
    provenance = place_of(SPEC, layout).made_by
    assert (provenance.checkpoint, provenance.platform, provenance.chip) == ("toy", "cpu", "cpu")
    assert (provenance.layout, provenance.jax) == ("one device", jax.__version__)
    assert place_of(SPEC, one_device(jax.devices()[1])).made_by == provenance
    assert provenance.rounds_as(
        place_of(SPEC.model_copy(update={"fingerprint": "new"}), layout).made_by
    )
    assert not provenance.rounds_as(
        place_of(SPEC.model_copy(update={"config_digest": "new"}), layout).made_by
    )
    split = place_of(SPEC, parallel(tensor=2)).made_by
    assert split.layout == "tensor=2" and not split.rounds_as(provenance)


@pytest.mark.usefixtures("described")
def test_models_of_one_slice_share_its_chips_on_the_page_and_not_in_the_ledger() -> None:
    layout = a_layout(*[Device("TPU v6 lite", "tpu")] * 4)
    slice_place = place_of(SPEC, layout)
    origin = origin_of(slice_place, USAGE)
    for model in ("first", "second"):
        show(model, slice_place, origin, sharing=2)
        of_chip = {"model": model, "chip": "v6e", "spot": "true"}
        assert REGISTRY.get_sample_value("atelier_worker_chips", of_chip) == 2
    assert origin.chips == 4, "each has all of them while it works"


def test_phases_of_a_start_follow_each_other() -> None:
    began = metrics.process_began()
    later = metrics.started(["one", "two"], "import", began)
    assert metrics.started(["one", "two"], "wait", later) >= later > began

    def took_s(model: str, phase: str) -> float | None:
        labels = {"model": model, "phase": phase}
        return REGISTRY.get_sample_value("atelier_startup_seconds", labels)

    assert took_s("one", "import") == took_s("two", "import") == pytest.approx(later - began)
    wait_s = took_s("one", "wait")
    assert wait_s is not None and wait_s >= 0
