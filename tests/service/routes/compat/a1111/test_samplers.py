"""AUTOMATIC1111's samplers and schedulers as scheduler options."""

from __future__ import annotations

from typing import Any

import pytest

from models.sampling.flow_choice import FLOW_SCHEDULERS
from service.errors.problems import Invalid
from service.routes.compat.a1111.samplers import eta_of, scheduler_of
from tests.service.routes.compat.a1111.conftest import SDXL

KARRAS = {"use_karras_sigmas": True}


@pytest.mark.parametrize(
    ("sampler", "schedule", "meant"),
    [
        (None, None, None),
        (None, "Automatic", None),
        (None, "karras", {"name": "EulerDiscreteScheduler", **KARRAS}),
        ("Euler", None, {"name": "euler"}),
        ("euler", "automatic", {"name": "euler"}),
        ("Euler", "SGM Uniform", {"name": "euler", "timestep_spacing": "trailing"}),
        ("k_euler_a", "", {"name": "euler_ancestral"}),
        ("DPM++ 2M", None, {"name": "dpmpp_2m", **KARRAS}),
        ("DPM++ 2M Karras", None, {"name": "dpmpp_2m", **KARRAS}),
        ("DPM++ 2M Karras", "Automatic", {"name": "dpmpp_2m", **KARRAS}),
        ("DPM++ 2M", "Uniform", {"name": "dpmpp_2m", "timestep_spacing": "linspace"}),
        ("DPM++ 2M SDE Karras", None, {"name": "dpmpp_2m_sde", **KARRAS}),
        ("Euler", "normal", {"name": "euler", "timestep_spacing": "linspace"}),
        ("DDIM", "normal", {"name": "ddim"}),
        ("dpmpp_2m", "sgm_uniform", {"name": "dpmpp_2m", "timestep_spacing": "trailing"}),
        ("euler_ancestral", None, {"name": "euler_ancestral"}),
        ("EulerDiscreteScheduler", "Karras", {"name": "euler", **KARRAS}),
    ],
)
def test_sampler_names_have_their_automatic1111_meaning(
    sampler: str | None, schedule: str | None, meant: dict[str, Any] | None
) -> None:
    assert scheduler_of(SDXL, sampler, schedule) == meant


@pytest.mark.parametrize(
    ("sampler", "schedule"),
    [("Heun", None), ("UniPC", None), ("Euler Blue", None), ("Euler a", "Karras"), ("Euler", "x")],
)
def test_unsupported_sampler_lists_supported_ones(sampler: str, schedule: str | None) -> None:
    with pytest.raises(Invalid) as error:
        scheduler_of(SDXL, sampler, schedule)
    assert "Euler" in error.value.detail or "Automatic" in error.value.detail


def test_flow_samplers_keep_the_models_spacing() -> None:
    flow = SDXL.model_copy(update={"schedulers": FLOW_SCHEDULERS, "scheduler": ""})
    assert scheduler_of(flow, "Heun", "Simple") == {"name": "flow_match_heun"}
    assert scheduler_of(flow, "DPM++ 2M", None) == {"name": "dpmpp_2m"}
    for sampler in ("Euler", "Euler a", None):  # the default samplers of clients
        assert scheduler_of(flow, sampler, "Automatic") is None
    with pytest.raises(Invalid, match="has no scheduler 'Karras'"):
        scheduler_of(flow, "Heun", "Karras")
    with pytest.raises(Invalid, match="'DPM2'; it has Euler, Heun, DPM"):
        scheduler_of(flow, "DPM2", None)


def test_eta_applies_only_to_ddim() -> None:
    assert eta_of("DDIM", 0.5) == 0.5
    assert eta_of("Euler", 0.5) is None and eta_of("Euler a", 1.0) is None
    with pytest.raises(Invalid):
        eta_of("Euler a", 0.5)
