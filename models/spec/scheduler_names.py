"""Names of schedulers in other programs: AUTOMATIC1111, ComfyUI, diffusers and Replicate.

A name is a sampler, a schedule (the spacing of its sigmas), or a sampler with a schedule behind it.
No JAX: front ends import this module.

Source: diffusers, docs/source/en/api/schedulers/overview.md (the mapping); AUTOMATIC1111
stable-diffusion-webui, modules/sd_samplers_kdiffusion.py; ComfyUI, comfy/samplers.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from models.spec.option import OptionError


@dataclass(frozen=True)
class Schedule:
    """Spacing of the steps, which AUTOMATIC1111 and ComfyUI call a scheduler."""

    name: str
    label: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Equivalent options of this API's schedulers."""


@dataclass(frozen=True)
class Sampler:
    """Sampler of AUTOMATIC1111 or ComfyUI, which corresponds to a scheduler here."""

    name: str
    """AUTOMATIC1111's label."""
    schedulers: tuple[str, ...]
    """Equivalent schedulers here; a model has at most one of them."""
    aliases: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    """Classes of diffusers, which also name the scheduler of a checkpoint."""
    automatic: str = "automatic"
    """Schedule that AUTOMATIC1111's `Automatic` selects."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Scheduler options that the name implies."""


AUTOMATIC = Schedule("automatic", "Automatic")
SIMPLE = Schedule("simple", "Simple", {"timestep_spacing": "trailing"})
NORMAL = Schedule("normal", "Normal", {"timestep_spacing": "linspace"})
"""Equal to Uniform, since a model's own sigmas are used. SillyTavern's default."""
# AUTOMATIC1111's Polyexponential has the exponent 1, which is Exponential.
SCHEDULES = (
    AUTOMATIC,
    Schedule("uniform", "Uniform", {"timestep_spacing": "linspace"}),
    Schedule("karras", "Karras", {"use_karras_sigmas": True}),
    Schedule(
        "exponential",
        "Exponential",
        {"timestep_spacing": "linspace", "use_exponential_sigmas": True},
    ),
    Schedule(
        "polyexponential",
        "Polyexponential",
        {"timestep_spacing": "linspace", "use_exponential_sigmas": True},
    ),
    Schedule("sgm_uniform", "SGM Uniform", {"timestep_spacing": "trailing"}),
    SIMPLE,
    NORMAL,
    Schedule("ddim_uniform", "DDIM Uniform", {"timestep_spacing": "leading"}),
    Schedule("beta", "Beta", {"timestep_spacing": "linspace", "use_beta_sigmas": True}),
)
SAMPLERS = (
    Sampler(
        "Euler",
        ("euler", "flow_match_euler"),
        aliases=("k_euler",),
        classes=("EulerDiscreteScheduler", "FlowMatchEulerDiscreteScheduler"),
    ),
    Sampler(
        "Euler a",
        ("euler_ancestral",),
        aliases=("k_euler_a", "k_euler_ancestral"),
        classes=("EulerAncestralDiscreteScheduler",),
    ),
    Sampler(
        "Heun",
        ("heun", "flow_match_heun"),
        aliases=("k_heun",),
        classes=("HeunDiscreteScheduler", "FlowMatchHeunDiscreteScheduler"),
    ),
    Sampler("LMS", ("lms",), aliases=("k_lms",), classes=("LMSDiscreteScheduler",)),
    Sampler(
        "DPM2",
        ("dpm_2",),
        aliases=("k_dpm_2",),
        classes=("KDPM2DiscreteScheduler",),
        automatic="karras",
    ),
    Sampler(
        "DPM2 a",
        ("dpm_2_ancestral",),
        aliases=("k_dpm_2_a", "k_dpm_2_ancestral"),
        classes=("KDPM2AncestralDiscreteScheduler",),
        automatic="karras",
    ),
    Sampler(
        "DPM++ 2M",
        ("dpmpp_2m",),
        aliases=("k_dpmpp_2m",),
        classes=("DPMSolverMultistepScheduler",),
        automatic="karras",
    ),
    Sampler(
        "DPM++ SDE",
        ("dpmpp_sde",),
        aliases=("k_dpmpp_sde", "dpmpp_sde_gpu"),
        classes=("DPMSolverSDEScheduler",),
        automatic="karras",
    ),
    Sampler(
        "DPM++ 2M SDE",
        ("dpmpp_2m_sde",),
        aliases=("k_dpmpp_2m_sde", "dpmpp_2m_sde_gpu"),
        automatic="exponential",
    ),
    Sampler(
        "DPM++ 2M SDE Heun",
        ("dpmpp_2m_sde",),
        aliases=("k_dpmpp_2m_sde_heun", "dpmpp_2m_sde_heun_gpu"),
        automatic="exponential",
        options={"solver_type": "heun"},
    ),
    Sampler(
        "DPM++ 3M SDE",
        ("dpmpp_3m_sde",),
        aliases=("k_dpmpp_3m_sde", "dpmpp_3m_sde_gpu"),
        automatic="exponential",
    ),
    Sampler(
        "DPM++ 2S",
        ("dpmpp_2s",),
        aliases=("k_dpmpp_2s",),
        classes=("DPMSolverSinglestepScheduler",),
    ),
    Sampler("DPM++ 2S a", ("dpmpp_2s_ancestral",), aliases=("k_dpmpp_2s_a",), automatic="karras"),
    Sampler("DEIS", ("deis",), classes=("DEISMultistepScheduler",)),
    Sampler("PLMS", ("pndm",), classes=("PNDMScheduler",)),
    Sampler("DDPM", ("ddpm",), classes=("DDPMScheduler",)),
    Sampler("DDIM", ("ddim",), classes=("DDIMScheduler",)),
    Sampler("UniPC", ("unipc",), aliases=("uni_pc_bh2",), classes=("UniPCMultistepScheduler",)),
    Sampler("LCM", ("lcm",), aliases=("k_lcm",), classes=("LCMScheduler",)),
    Sampler("TCD", ("tcd",), classes=("TCDScheduler",)),
)
"""Samplers with their names elsewhere; a name's case, spaces, hyphens and underscores are ignored,
and `++` is `pp`."""
_WITH_SCHEDULE: Mapping[str, str] = {"karrasdpm": "DPM++ 2M Karras"}
"""Names, without case, of a sampler with a schedule: Replicate's."""
_CLASS_SUFFIX = "Scheduler"


def find_schedule(name: str) -> Schedule | None:
    """Return the schedule with that name or label; None: no such schedule."""
    key = _folded(name)
    names = ((schedule, (schedule.name, schedule.label)) for schedule in SCHEDULES)
    return next((schedule for schedule, of in names if key in map(_folded, of)), None)


def find_sampler(name: str) -> Sampler | None:
    """Return the sampler with that name, without a schedule; None: no such sampler."""
    key = _folded(name)
    return next((sampler for sampler in SAMPLERS if key in _names(sampler)), None)


def split_name(name: str) -> tuple[str, Schedule | None]:
    """Split a step schedule from a sampler's name: `DPM++ 2M Karras` → `DPM++ 2M`, Karras."""
    words = name.replace("_", " ").replace("-", " ").split()
    for count in (2, 1):
        schedule = find_schedule(" ".join(words[-count:])) if len(words) > count else None
        if schedule:
            return " ".join(words[:-count]), schedule
    return name, None


def scheduler_name(sampler: Sampler, available: Collection[str]) -> str | None:
    """Return the scheduler of a sampler; None: the model has no equivalent one."""
    return next((name for name in sampler.schedulers if name in available), None)


def resolve_scheduler(
    chosen: Mapping[str, Any], available: Mapping[str, Collection[str]], default: str = ""
) -> dict[str, Any]:
    """Replace another program's name of a scheduler by this API's name, and the options it implies.

    The result is unchanged if the model has no such scheduler.

    Args:
        chosen: a request's `scheduler`: `name` and options, which take precedence.
        available: options of the model's schedulers, by name.
        default: scheduler of a name that is a schedule alone.

    Raises: OptionError: the model's scheduler of that name has another schedule only.
    """
    name = chosen.get("name")
    if not isinstance(name, str) or name in available:
        return dict(chosen)
    scheduler, options = _resolved(name, available, default)
    if scheduler is None:
        return dict(chosen)
    if _implies_spacing(scheduler, options, available[scheduler]):
        options = {key: value for key, value in options.items() if key != "timestep_spacing"}
    if lacking := options.keys() - {*available[scheduler]}:
        raise OptionError("name", f"{name!r}: {scheduler} has no {', '.join(sorted(lacking))}")
    return {**options, **chosen, "name": scheduler}


def _implies_spacing(
    scheduler: str, options: Mapping[str, Any], available: Collection[str]
) -> bool:
    """Return whether a scheduler without spacing options always has the requested spacing.

    Flows have a spacing of their own, which these schedules name; singlestep methods are linear.
    """
    if "timestep_spacing" in available:
        return False
    is_flow = not available or scheduler.startswith("flow_match")
    return is_flow or options.get("timestep_spacing") == "linspace"


def _resolved(
    name: str, available: Collection[str], default: str
) -> tuple[str | None, Mapping[str, Any]]:
    """Return the scheduler of a name, and the options that it implies."""
    name = _WITH_SCHEDULE.get(_folded(name), name)
    alone = find_schedule(name)
    start, schedule = (name, None) if alone or find_sampler(name) else split_name(name)
    if sampler := find_sampler(start):
        options = schedule.options if schedule else {}
        return scheduler_name(sampler, available), {**sampler.options, **options}
    if alone and default in available:
        return default, alone.options
    return None, {}


def _folded(name: str) -> str:
    """Normalize a scheduler's name: no case, spaces, hyphens or underscores; `++` as `pp`."""
    return name.lower().replace("++", "pp").translate(_SEPARATORS)


_SEPARATORS = str.maketrans("", "", " _-")


def _names(sampler: Sampler) -> frozenset[str]:
    classes = (name.removesuffix(_CLASS_SUFFIX) for name in sampler.classes)
    names = (sampler.name, *sampler.aliases, *sampler.classes, *classes)
    return frozenset(map(_folded, (*names, *sampler.schedulers[: not sampler.options])))
