"""Samplers and schedulers by AUTOMATIC1111's names, in ours.

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
    """Options of our schedulers that mean it."""


@dataclass(frozen=True)
class Sampler:
    """Sampler, which is a scheduler here."""

    name: str
    schedulers: tuple[str, ...]
    """Names of ours; a model has one of them, or none."""
    aliases: tuple[str, ...]
    automatic: str = "automatic"
    """Schedule that `Automatic` means."""


AUTOMATIC = Schedule("automatic", "Automatic")
SIMPLE = Schedule("simple", "Simple", {"timestep_spacing": "trailing"})
NORMAL = Schedule("normal", "Normal", {"timestep_spacing": "linspace"})
"""The same as Uniform, since a model's own sigmas are used. SillyTavern's default."""
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
UNCHOSEN = ("Euler a", "DDIM")
"""Samplers that clients send where nobody has chosen one (webuiapi's default, and SillyTavern's): a
model that lacks them has its own instead."""
BY_TIMESTEPS = ("DDIM", "UniPC")
"""Samplers with a spacing of their own, which there is the same by any scheduler."""
STOCHASTIC = ("Euler a", "DPM++ 2M SDE")
"""Samplers whose noise `eta` scales there, and is whole here."""


def scheduler_of(
    spec: ModelSpec, sampler: str | None, schedule: str | None
) -> dict[str, Any] | None:
    """Return a request's `scheduler`; None: the checkpoint's own.

    Raises: Invalid: this model has no such sampler or scheduler.
    """
    chosen, chosen_schedule = _chosen(spec, sampler, _schedule(schedule))
    if chosen is None and not chosen_schedule.options:
        return None
    name = ours(spec, chosen) if chosen else spec.scheduler
    if name is None or (not spec.schedulers and chosen_schedule.options):
        return None  # Euler on a flow, which is all that the model has
    _check_options(spec, name, chosen_schedule)
    return {"name": name, **chosen_schedule.options}


def _chosen(
    spec: ModelSpec, name: str | None, schedule: Schedule
) -> tuple[Sampler | None, Schedule]:
    """The sampler, and its schedule: which may be the last word of the sampler's name."""
    if not name:
        return None, _checked(spec, schedule)
    found, own = _sampler(name), None
    if found is None:
        start, _, last = name.rpartition(" ")
        found, own = _sampler(start), _named(last)
    if found and found.name in UNCHOSEN and not has(spec, found):
        return None, _checked(spec, schedule)
    if found is None or (own is None and _sampler(name) is None) or not has(spec, found):
        there_are = ", ".join(one.name for one in samplers_of(spec))
        said = f"the model {spec.name!r} has no sampler {name[:80]!r}; it has {there_are}"
        raise Invalid([FieldError("sampler_name", said)])
    if schedule is AUTOMATIC or (schedule is NORMAL and found.name in BY_TIMESTEPS):
        schedule = own or _named(found.automatic) or AUTOMATIC
        return found, schedule if spec.schedulers else AUTOMATIC
    return found, _checked(spec, schedule)


def _checked(spec: ModelSpec, schedule: Schedule) -> Schedule:
    """Return the schedule. Raises: Invalid: of a model that has one alone."""
    if spec.schedulers or schedule in (AUTOMATIC, SIMPLE, NORMAL):
        return schedule
    said = f"the model {spec.name!r} has no scheduler {schedule.label!r}; it has Automatic, Simple"
    raise Invalid([FieldError("scheduler", said)])


def _check_options(spec: ModelSpec, name: str, schedule: Schedule) -> None:
    """Raises: Invalid: the sampler takes no such schedule."""
    if schedule.options.keys() <= spec.schedulers.get(name, {}).keys():
        return
    known = spec.schedulers.get(name, {}).keys()
    fitting = ", ".join(one.label for one in SCHEDULES if one.options.keys() <= known)
    said = f"{schedule.label!r} is none that this sampler has here; it has {fitting}"
    raise Invalid([FieldError("scheduler", said)])


def _schedule(name: str | None) -> Schedule:
    """Raises: Invalid."""
    found = _named(name) if name else AUTOMATIC
    if found is None:
        there_are = ", ".join(one.label for one in SCHEDULES)
        said = f"there is no scheduler {str(name)[:80]!r} here; there is {there_are}"
        raise Invalid([FieldError("scheduler", said)])
    return found


def _named(name: str) -> Schedule | None:
    asked = name.lower()
    return next((one for one in SCHEDULES if asked in (one.name, one.label.lower())), None)


def _sampler(name: str) -> Sampler | None:
    asked = name.lower()
    return next((one for one in SAMPLERS if asked in (one.name.lower(), *one.aliases)), None)


def has(spec: ModelSpec, sampler: Sampler) -> bool:
    """Return whether a model has a sampler; one without schedulers is a flow, which has Euler."""
    return ours(spec, sampler) is not None or (not spec.schedulers and sampler.name == "Euler")


def ours(spec: ModelSpec, sampler: Sampler) -> str | None:
    """Return our name of a sampler; None: the model has no such scheduler by name."""
    return next((name for name in sampler.schedulers if name in spec.schedulers), None)


def samplers_of(spec: ModelSpec) -> Iterator[Sampler]:
    """Yield the samplers that a model has."""
    return (one for one in SAMPLERS if has(spec, one))


def without_noise(sampler: str | None, eta: float | None) -> str | None:
    """Return the sampler that is meant: `Euler a` that adds no noise is `Euler`."""
    found = _sampler(sampler) if sampler else None
    return "Euler" if found and found.name == "Euler a" and eta == 0 else sampler


def eta_of(sampler: str | None, eta: float | None) -> float | None:
    """Return a request's `eta`, of the one sampler that takes it. Raises: Invalid."""
    name = found.name if sampler and (found := _sampler(sampler)) else sampler
    if name in STOCHASTIC and eta not in (None, 1):
        raise Invalid([FieldError("eta", f"is not served with {name}; leave it out or send 1")])
    return eta if name == "DDIM" else None
