"""Conversion of AUTOMATIC1111's samplers and schedulers to this API's schedulers.

Source: diffusers, docs/source/en/api/schedulers/overview.md (the mapping); AUTOMATIC1111
stable-diffusion-webui, modules/sd_samplers_kdiffusion.py (names, and what Automatic means).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from models.spec.model_spec import ModelSpec
from service.errors.problems import FieldError, Invalid


@dataclass(frozen=True)
class Schedule:
    """Spacing of the steps, which AUTOMATIC1111 calls a scheduler."""

    name: str
    label: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Equivalent options of this API's schedulers."""


@dataclass(frozen=True)
class Sampler:
    """Sampler of AUTOMATIC1111, which corresponds to a scheduler here."""

    name: str
    schedulers: tuple[str, ...]
    """Equivalent schedulers here; a model has at most one of them."""
    aliases: tuple[str, ...]
    automatic: str = "automatic"
    """Schedule that `Automatic` selects."""


AUTOMATIC = Schedule("automatic", "Automatic")
SIMPLE = Schedule("simple", "Simple", {"timestep_spacing": "trailing"})
NORMAL = Schedule("normal", "Normal", {"timestep_spacing": "linspace"})
"""Equal to Uniform, since a model's own sigmas are used. SillyTavern's default."""
SCHEDULES = (
    AUTOMATIC,
    Schedule("uniform", "Uniform", {"timestep_spacing": "linspace"}),
    Schedule("karras", "Karras", {"use_karras_sigmas": True}),
    Schedule(
        "exponential",
        "Exponential",
        {"timestep_spacing": "linspace", "use_exponential_sigmas": True},
    ),
    Schedule("sgm_uniform", "SGM Uniform", {"timestep_spacing": "trailing"}),
    SIMPLE,
    NORMAL,
    Schedule("beta", "Beta", {"timestep_spacing": "linspace", "use_beta_sigmas": True}),
)
SAMPLERS = (
    Sampler("Euler", ("euler", "flow_match_euler"), ("k_euler",)),
    Sampler("Euler a", ("euler_ancestral",), ("k_euler_a", "k_euler_ancestral")),
    Sampler("DPM++ 2M", ("dpmpp_2m",), ("k_dpmpp_2m",), "karras"),
    Sampler("DPM++ 2M SDE", ("dpmpp_2m_sde",), ("k_dpmpp_2m_sde",), "exponential"),
    Sampler("DDIM", ("ddim",), ()),
    Sampler("UniPC", ("unipc",), ()),
    Sampler("LCM", ("lcm",), ("k_lcm",)),
)
CLIENT_DEFAULTS = ("Euler a", "DDIM")
"""Default samplers of clients (webuiapi, SillyTavern), sent without a choice of the user. A model
without them uses its own scheduler."""
BY_TIMESTEPS = ("DDIM", "UniPC")
"""Samplers with their own spacing, which AUTOMATIC1111 keeps for any scheduler."""
STOCHASTIC = ("Euler a", "DPM++ 2M SDE")
"""Samplers whose noise AUTOMATIC1111 scales by `eta`; here it is not scaled."""


def scheduler_of(
    spec: ModelSpec, sampler: str | None, schedule: str | None
) -> dict[str, Any] | None:
    """Return the `scheduler` field of a request; None: the checkpoint's own.

    Raises: Invalid: the model does not support this sampler or scheduler.
    """
    sampler_choice, chosen_schedule = _select(spec, sampler, _schedule(schedule))
    if sampler_choice is None and not chosen_schedule.options:
        return None
    name = scheduler_name(spec, sampler_choice) if sampler_choice else spec.scheduler
    if name is None or (not spec.schedulers and chosen_schedule.options):
        return None  # a flow model, which supports Euler only
    _check_options(spec, name, chosen_schedule)
    return {"name": name, **chosen_schedule.options}


def _select(
    spec: ModelSpec, name: str | None, schedule: Schedule
) -> tuple[Sampler | None, Schedule]:
    """Return the sampler and its schedule, which may be the last word of the sampler's name."""
    if not name:
        return None, _check_schedule(spec, schedule)
    match, name_schedule = _find_sampler(name), None
    if match is None:
        start, _, last = name.rpartition(" ")
        match, name_schedule = _find_sampler(start), _find_schedule(last)
    if match and match.name in CLIENT_DEFAULTS and not supports(spec, match):
        return None, _check_schedule(spec, schedule)
    if (
        match is None
        or (name_schedule is None and _find_sampler(name) is None)
        or not supports(spec, match)
    ):
        names = ", ".join(available.name for available in samplers_of(spec))
        message = f"the model {spec.name!r} has no sampler {name[:80]!r}; it has {names}"
        raise Invalid([FieldError("sampler_name", message)])
    if schedule is AUTOMATIC or (schedule is NORMAL and match.name in BY_TIMESTEPS):
        schedule = name_schedule or _find_schedule(match.automatic) or AUTOMATIC
        return match, schedule if spec.schedulers else AUTOMATIC
    return match, _check_schedule(spec, schedule)


def _check_schedule(spec: ModelSpec, schedule: Schedule) -> Schedule:
    """Return the schedule unchanged. Raises: Invalid: the model supports only its own schedule."""
    if spec.schedulers or schedule in (AUTOMATIC, SIMPLE, NORMAL):
        return schedule
    message = (
        f"the model {spec.name!r} has no scheduler {schedule.label!r}; it has Automatic, Simple"
    )
    raise Invalid([FieldError("scheduler", message)])


def _check_options(spec: ModelSpec, name: str, schedule: Schedule) -> None:
    """Check that the sampler supports the schedule's options. Raises: Invalid."""
    if schedule.options.keys() <= spec.schedulers.get(name, {}).keys():
        return
    supported = spec.schedulers.get(name, {}).keys()
    labels = ", ".join(other.label for other in SCHEDULES if other.options.keys() <= supported)
    message = f"{schedule.label!r} is not available for this sampler; available: {labels}"
    raise Invalid([FieldError("scheduler", message)])


def _schedule(name: str | None) -> Schedule:
    """Return the schedule of a name; `AUTOMATIC` if absent. Raises: Invalid."""
    match = _find_schedule(name) if name else AUTOMATIC
    if match is None:
        labels = ", ".join(schedule.label for schedule in SCHEDULES)
        message = f"there is no scheduler {str(name)[:80]!r} here; available: {labels}"
        raise Invalid([FieldError("scheduler", message)])
    return match


def _find_schedule(name: str) -> Schedule | None:
    key = name.lower()
    return next(
        (schedule for schedule in SCHEDULES if key in (schedule.name, schedule.label.lower())), None
    )


def _find_sampler(name: str) -> Sampler | None:
    key = name.lower()
    return next(
        (sampler for sampler in SAMPLERS if key in (sampler.name.lower(), *sampler.aliases)), None
    )


def supports(spec: ModelSpec, sampler: Sampler) -> bool:
    """Return whether a model supports a sampler; models without schedulers are flows (Euler)."""
    return scheduler_name(spec, sampler) is not None or (
        not spec.schedulers and sampler.name == "Euler"
    )


def scheduler_name(spec: ModelSpec, sampler: Sampler) -> str | None:
    """Return this API's name of a sampler; None: the model has no equivalent scheduler."""
    return next((name for name in sampler.schedulers if name in spec.schedulers), None)


def samplers_of(spec: ModelSpec) -> Iterator[Sampler]:
    """Yield the samplers that a model supports."""
    return (sampler for sampler in SAMPLERS if supports(spec, sampler))


def without_noise(sampler: str | None, eta: float | None) -> str | None:
    """Return the sampler, with `Euler a` at eta 0 replaced by the equivalent `Euler`."""
    match = _find_sampler(sampler) if sampler else None
    return "Euler" if match and match.name == "Euler a" and eta == 0 else sampler


def eta_of(sampler: str | None, eta: float | None) -> float | None:
    """Return the `eta` field, which only DDIM supports. Raises: Invalid."""
    name = match.name if sampler and (match := _find_sampler(sampler)) else sampler
    if name in STOCHASTIC and eta not in (None, 1):
        raise Invalid([FieldError("eta", f"is not supported with {name}; leave it out or send 1")])
    return eta if name == "DDIM" else None
