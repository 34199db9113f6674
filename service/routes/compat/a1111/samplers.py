"""Conversion of AUTOMATIC1111's samplers and schedulers to this API's schedulers.

Source: AUTOMATIC1111 stable-diffusion-webui, modules/sd_samplers.py and sd_samplers_kdiffusion.py
(what Automatic means).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from models.spec.model_spec import ModelSpec
from models.spec.scheduler_names import (
    AUTOMATIC,
    NORMAL,
    SAMPLERS,
    SCHEDULES,
    SIMPLE,
    Sampler,
    Schedule,
    find_sampler,
    find_schedule,
    scheduler_name,
    split_name,
)
from service.errors.problems import FieldError, Invalid

FLOW = "flow_match_euler"
"""Scheduler of flow models; a request without one uses it too."""
UNCHOSEN = frozenset(("automatic", "default", "none"))
"""Names, in lower case, by which clients (SD.Next and others) leave the choice to the server."""
CLIENT_DEFAULTS = ("Euler a", "DDIM")
"""Default samplers of clients (webuiapi, SillyTavern), sent without a choice of the user. A model
without them uses its own scheduler."""
BY_TIMESTEPS = ("DDIM", "UniPC")
"""Samplers with their own spacing, which AUTOMATIC1111 keeps for any scheduler."""
WITH_ETA = ("DDIM", "TCD")
"""Samplers with an option `eta`."""
STOCHASTIC = (
    *("Euler a", "DPM2 a", "DPM++ SDE", "DPM++ 2M SDE", "DPM++ 2M SDE Heun", "DPM++ 3M SDE"),
    "DPM++ 2S a",
)
"""Samplers whose noise AUTOMATIC1111 scales by `eta`; here it is not scaled."""


def scheduler_of(
    spec: ModelSpec, sampler: str | None, schedule: str | None
) -> dict[str, Any] | None:
    """Return the request's scheduler for an AUTOMATIC1111 sampler; None: the checkpoint's.

    Raises: Invalid: the model does not support this sampler or scheduler.
    """
    sampler_choice, chosen_schedule = _select(spec, _chosen(sampler), _schedule(_chosen(schedule)))
    if sampler_choice is None and not chosen_schedule.options:
        return None
    name = scheduler_name(sampler_choice, spec.schedulers) if sampler_choice else spec.scheduler
    if not _has_schedules(spec):  # a flow model, whose own scheduler is Euler
        return {"name": name} if name and name != FLOW else None
    _check_options(spec, name or "", chosen_schedule)
    implied = sampler_choice.options if sampler_choice else {}
    supported = spec.schedulers.get(name or "", {})
    options = {key: value for key, value in chosen_schedule.options.items() if key in supported}
    return {"name": name, **implied, **options}


def _chosen(name: str | None) -> str | None:
    """Return a name; None: it leaves the choice to the server."""
    return None if name is None or name.strip().lower() in UNCHOSEN else name


def _has_schedules(spec: ModelSpec) -> bool:
    """Return whether a model supports other step schedules than its own."""
    return any(spec.schedulers.values())


def _select(
    spec: ModelSpec, name: str | None, schedule: Schedule
) -> tuple[Sampler | None, Schedule]:
    """Return an AUTOMATIC1111 sampler and its schedule, which may be the last word of its name."""
    if not name:
        return None, _check_schedule(spec, schedule)
    start, name_schedule = (name, None) if find_sampler(name) else split_name(name)
    match = find_sampler(start)
    if match and match.name in CLIENT_DEFAULTS and not supports(spec, match):
        return None, _check_schedule(spec, schedule)
    if match is None or not supports(spec, match):
        names = ", ".join(available.name for available in samplers_of(spec))
        message = f"the model {spec.name!r} has no sampler {name[:80]!r}; it has {names}"
        raise Invalid([FieldError("sampler_name", message)])
    if schedule is AUTOMATIC or (schedule is NORMAL and match.name in BY_TIMESTEPS):
        schedule = name_schedule or find_schedule(match.automatic) or AUTOMATIC
        return match, schedule if _has_schedules(spec) else AUTOMATIC
    return match, _check_schedule(spec, schedule)


def _check_schedule(spec: ModelSpec, schedule: Schedule) -> Schedule:
    """Return a sampler's step schedule unchanged. Raises: Invalid: the model has only its own."""
    if _has_schedules(spec) or schedule in (AUTOMATIC, SIMPLE, NORMAL):
        return schedule
    message = (
        f"the model {spec.name!r} has no scheduler {schedule.label!r}; it has Automatic, Simple"
    )
    raise Invalid([FieldError("scheduler", message)])


def _check_options(spec: ModelSpec, name: str, schedule: Schedule) -> None:
    """Check that a model's sampler supports the step schedule's options. Raises: Invalid."""
    supported = spec.schedulers.get(name, {}).keys()
    if _is_supported(schedule, supported):
        return
    labels = ", ".join(other.label for other in SCHEDULES if _is_supported(other, supported))
    message = f"{schedule.label!r} is not available for this sampler; available: {labels}"
    raise Invalid([FieldError("scheduler", message)])


def _is_supported(schedule: Schedule, options: Collection[str]) -> bool:
    """Return whether a scheduler with these options has a schedule; singlestep ones are linear."""
    lacking = schedule.options.keys() - {*options}
    return not lacking or (
        lacking == {"timestep_spacing"} and schedule.options["timestep_spacing"] == "linspace"
    )


def _schedule(name: str | None) -> Schedule:
    """Return the step schedule with that name; `AUTOMATIC` if absent. Raises: Invalid."""
    match = find_schedule(name) if name else AUTOMATIC
    if match is None:
        labels = ", ".join(schedule.label for schedule in SCHEDULES)
        message = f"there is no scheduler {str(name)[:80]!r} here; available: {labels}"
        raise Invalid([FieldError("scheduler", message)])
    return match


def supports(spec: ModelSpec, sampler: Sampler) -> bool:
    """Return whether a model supports a sampler; models without schedulers are flows (Euler)."""
    return scheduler_name(sampler, spec.schedulers) is not None or (
        not spec.schedulers and sampler.name == "Euler"
    )


def samplers_of(spec: ModelSpec) -> Iterator[Sampler]:
    """Yield the AUTOMATIC1111 samplers that a model supports."""
    return (sampler for sampler in SAMPLERS if supports(spec, sampler))


def without_noise(sampler: str | None, eta: float | None) -> str | None:
    """Return the sampler, with `Euler a` at eta 0 replaced by the equivalent `Euler`."""
    match = find_sampler(sampler) if sampler else None
    return "Euler" if match and match.name == "Euler a" and eta == 0 else sampler


def eta_of(sampler: str | None, eta: float | None) -> float | None:
    """Return the `eta` field, which only DDIM and TCD support. Raises: Invalid."""
    name = match.name if sampler and (match := find_sampler(sampler)) else sampler
    if name in STOCHASTIC and eta not in (None, 1):
        raise Invalid([FieldError("eta", f"is not supported with {name}; leave it out or send 1")])
    return eta if name in WITH_ETA else None
