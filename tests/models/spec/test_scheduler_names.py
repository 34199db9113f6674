"""Names of schedulers in other programs, and the schedulers that they select."""

from __future__ import annotations

from typing import Any

import pytest

from models.sampling.flow_choice import FLOW_SCHEDULERS
from models.sampling.registry import CHOICES, CLASSES
from models.sdxl.spec import SCHEDULERS as SDXL
from models.spec.option import OptionError
from models.spec.scheduler_names import SAMPLERS, SCHEDULES, find_sampler, resolve_scheduler
from models.wan.schedulers import OPTIONS as WAN

KARRAS = {"use_karras_sigmas": True}
TRAILING = {"timestep_spacing": "trailing"}

NAMES: dict[str, dict[str, Any]] = {
    # AUTOMATIC1111
    "Euler a": {"name": "euler_ancestral"},
    "DPM++ 3M SDE Karras": {"name": "dpmpp_3m_sde", **KARRAS},
    "DPM++ 3M SDE Exponential": {
        "name": "dpmpp_3m_sde",
        "timestep_spacing": "linspace",
        "use_exponential_sigmas": True,
    },
    "DPM++ 2M SDE Heun": {"name": "dpmpp_2m_sde", "solver_type": "heun"},
    "DPM++ 2M SDE Heun Karras": {"name": "dpmpp_2m_sde", "solver_type": "heun", **KARRAS},
    "DPM++ 2S a Karras": {"name": "dpmpp_2s_ancestral", **KARRAS},
    "DPM2 a": {"name": "dpm_2_ancestral"},
    "PLMS": {"name": "pndm"},
    "k_dpm_2_a": {"name": "dpm_2_ancestral"},
    # ComfyUI
    "uni_pc": {"name": "unipc"},
    "dpmpp_2m_sde_gpu": {"name": "dpmpp_2m_sde"},
    "dpmpp_2m karras": {"name": "dpmpp_2m", **KARRAS},
    "dpmpp_2m_sgm_uniform": {"name": "dpmpp_2m", **TRAILING},
    "euler simple": {"name": "euler", **TRAILING},
    "dpm_2_ancestral": {"name": "dpm_2_ancestral"},
    "karras": {"name": "EulerDiscreteScheduler", **KARRAS},
    "ddim_uniform": {"name": "EulerDiscreteScheduler", "timestep_spacing": "leading"},
    "DPM++ 2S Beta": {"name": "dpmpp_2s", "use_beta_sigmas": True},
    "DPM++ 2S Uniform": {"name": "dpmpp_2s"},
    # diffusers and Replicate
    "HeunDiscreteScheduler": {"name": "HeunDiscreteScheduler"},
    "HeunDiscrete": {"name": "heun"},
    "K_EULER": {"name": "euler"},
    "KarrasDPM": {"name": "dpmpp_2m", **KARRAS},
    "DPMSolverMultistep": {"name": "dpmpp_2m"},
    # none
    "restart": {"name": "restart"},
    "euler blue": {"name": "euler blue"},
}


@pytest.mark.parametrize("name", NAMES)
def test_names_select_schedulers_of_sdxl(name: str) -> None:
    assert resolve_scheduler({"name": name}, SDXL, "EulerDiscreteScheduler") == NAMES[name]


@pytest.mark.parametrize(
    ("available", "name", "scheduler"),
    [
        (WAN, "Heun", "flow_match_heun"),
        (WAN, "uni_pc", "unipc"),
        (FLOW_SCHEDULERS, "heun", "flow_match_heun"),
        (FLOW_SCHEDULERS, "DPM++ 2M", "dpmpp_2m"),
        (FLOW_SCHEDULERS, "euler_simple", "flow_match_euler"),
    ],
)
def test_names_select_schedulers_of_flows(available: Any, name: str, scheduler: str) -> None:
    assert resolve_scheduler({"name": name}, available) == {"name": scheduler}


def test_options_of_the_request_take_precedence() -> None:
    chosen = {"name": "DPM++ 2M Karras", "use_karras_sigmas": False, "solver_order": 3}
    resolved = resolve_scheduler(chosen, SDXL)
    assert resolved == {**chosen, "name": "dpmpp_2m"}
    assert chosen["name"] == "DPM++ 2M Karras"


def test_schedule_that_a_scheduler_lacks_is_refused_by_name() -> None:
    with pytest.raises(OptionError, match=r"'Euler a Karras': euler_ancestral has no use_karras"):
        resolve_scheduler({"name": "Euler a Karras"}, SDXL)
    with pytest.raises(OptionError, match="dpmpp_2m has no use_karras_sigmas"):
        resolve_scheduler({"name": "DPM++ 2M Karras"}, FLOW_SCHEDULERS)


def test_every_scheduler_has_a_sampler_and_every_name_one_meaning() -> None:
    assert {name for sampler in SAMPLERS for name in sampler.schedulers} == CHOICES.keys() - CLASSES
    assert {name for sampler in SAMPLERS for name in sampler.classes} == CLASSES.keys()
    for sampler in SAMPLERS:
        for name in (sampler.name, *sampler.aliases, *sampler.classes):
            assert find_sampler(name) is sampler, name
    assert all(find_sampler(schedule.name) is None for schedule in SCHEDULES)
