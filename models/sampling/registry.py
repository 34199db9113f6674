"""Registry of schedulers, by a checkpoint's config and by a request's name.

Configs are diffusers' `scheduler_config.json`. They may contain keys of other schedulers, so that
another scheduler can be made from them. As in diffusers' from_config, keys that a scheduler does
not have are ignored; a key that no scheduler has is reported when a checkpoint is loaded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from models.sampling import solver
from models.sampling.base import Scheduler
from models.sampling.ddim import DDIM, DDIMStep
from models.sampling.ddpm import DDPM, DDPMStep
from models.sampling.deis import DEIS
from models.sampling.dpm import DPMSolver, DPMStep
from models.sampling.dpm_sde import DPMSolver2SAncestral, DPMSolverSDE, ExponentialStep
from models.sampling.dpm_singlestep import DPMSolverSinglestep, SinglestepStep
from models.sampling.euler import Euler, EulerStep
from models.sampling.euler_ancestral import EulerAncestral, EulerAncestralStep
from models.sampling.flow_heun import FlowMatchHeun
from models.sampling.flow_match import FlowMatchEuler, FlowMatchStep
from models.sampling.heun import Heun
from models.sampling.kdpm2 import KDPM2, KDPM2Ancestral
from models.sampling.lcm import LCM, LCMStep
from models.sampling.lms import LMS, LMSStep
from models.sampling.options import check_option, options_of_class
from models.sampling.pndm import PNDM, PNDMStep
from models.sampling.tcd import TCD
from models.sampling.two_stage import TwoStageStep
from models.sampling.unipc import UniPC, UniPCStep
from models.spec.evaluations import ONE_A_STEP, Evaluations
from models.spec.notices import notice
from models.spec.option import Option, OptionError
from models.spec.scheduler_names import resolve_scheduler


class Entry(NamedTuple):
    """Supported scheduler: its classes here and in diffusers, its solver and its request names."""

    reference: str | None
    """Class in diffusers: the `_class_name` of a checkpoint's config, and an alias in requests.
    None: diffusers has no such class."""
    kind: Any
    """Class of the scheduler, a `Scheduler`."""
    solver: type[solver.Solver]
    """Solver class of the scheduler's steps."""
    names: Mapping[str, Mapping[str, Any]]
    """Names in requests, each with the default options that it sets."""


SCHEDULERS = (
    Entry("EulerDiscreteScheduler", Euler, EulerStep, {"euler": {}}),
    Entry(
        "EulerAncestralDiscreteScheduler",
        EulerAncestral,
        EulerAncestralStep,
        {"euler_ancestral": {}},
    ),
    Entry("DDIMScheduler", DDIM, DDIMStep, {"ddim": {}}),
    Entry(
        "DPMSolverMultistepScheduler",
        DPMSolver,
        DPMStep,
        {
            "dpmpp_2m": {"algorithm_type": "dpmsolver++"},
            "dpmpp_2m_sde": {"algorithm_type": "sde-dpmsolver++"},
            "dpmpp_3m_sde": {"algorithm_type": "sde-dpmsolver++", "solver_order": 3},
        },
    ),
    Entry("DPMSolverSinglestepScheduler", DPMSolverSinglestep, SinglestepStep, {"dpmpp_2s": {}}),
    Entry("DPMSolverSDEScheduler", DPMSolverSDE, ExponentialStep, {"dpmpp_sde": {}}),
    Entry(None, DPMSolver2SAncestral, ExponentialStep, {"dpmpp_2s_ancestral": {}}),
    Entry("KDPM2DiscreteScheduler", KDPM2, TwoStageStep, {"dpm_2": {}}),
    Entry("KDPM2AncestralDiscreteScheduler", KDPM2Ancestral, TwoStageStep, {"dpm_2_ancestral": {}}),
    Entry("HeunDiscreteScheduler", Heun, TwoStageStep, {"heun": {}}),
    Entry("LMSDiscreteScheduler", LMS, LMSStep, {"lms": {}}),
    Entry("DEISMultistepScheduler", DEIS, DPMStep, {"deis": {}}),
    Entry("PNDMScheduler", PNDM, PNDMStep, {"pndm": {}}),
    Entry("DDPMScheduler", DDPM, DDPMStep, {"ddpm": {}}),
    Entry("UniPCMultistepScheduler", UniPC, UniPCStep, {"unipc": {}}),
    Entry("LCMScheduler", LCM, LCMStep, {"lcm": {}}),
    Entry("TCDScheduler", TCD, DDIMStep, {"tcd": {}}),
    Entry(
        "FlowMatchEulerDiscreteScheduler", FlowMatchEuler, FlowMatchStep, {"flow_match_euler": {}}
    ),
    Entry("FlowMatchHeunDiscreteScheduler", FlowMatchHeun, TwoStageStep, {"flow_match_heun": {}}),
)
"""Supported schedulers; all tables below are derived from this one."""

CLASSES: Mapping[str, type] = {
    entry.reference: entry.kind for entry in SCHEDULERS if entry.reference is not None
}
SOLVERS: tuple[type[solver.Solver], ...] = tuple(
    dict.fromkeys(entry.solver for entry in SCHEDULERS)
)

_EDM = "networks in EDM's preconditioning, by sigma_data, are not served"
REFUSED: Mapping[str, str] = {
    "EDMEulerScheduler": _EDM,
    "EDMDPMSolverMultistepScheduler": _EDM,
}
"""Reason for each class of diffusers that no scheduler here can replace."""


@dataclass(frozen=True)
class Choice:
    """Scheduler class and implied options of a request's scheduler name."""

    kind: Any
    """Class of the scheduler, a `Scheduler`."""
    implied: Mapping[str, Any] = field(default_factory=dict)
    """Options that the name sets unless the request does."""


CHOICES: Mapping[str, Choice] = {
    **{
        name: Choice(entry.kind, implied)
        for entry in SCHEDULERS
        for name, implied in entry.names.items()
    },
    **{name: Choice(kind) for name, kind in CLASSES.items()},
}
"""Choices by the `name` of a request's scheduler; diffusers' class names are aliases."""

_NOT_IN_CONFIGS = frozenset({"eta"})
"""Options that diffusers passes to its pipelines instead of its schedulers."""
_ENDS = frozenset({"sigma_min", "sigma_max"})
_NO_OPTIONS: Mapping[type, frozenset[str]] = {
    **dict.fromkeys(
        (DPMSolver, DPMSolverSDE, DPMSolver2SAncestral, Heun, KDPM2, KDPM2Ancestral, LMS), _ENDS
    ),
    DEIS: _ENDS | {"final_sigmas_type"},
    DPMSolverSinglestep: _ENDS | {"timestep_spacing", "steps_offset"},
    PNDM: frozenset({"skip_prk_steps"}),
    UniPC: frozenset({"use_dynamic_shifting"}),
    FlowMatchEuler: frozenset({"use_dynamic_shifting", "invert_sigmas", "stochastic_sampling"}),
}
"""Keys that a request may not set: diffusers' class reads them from a config but has no such
option, or only one value is supported."""
_OF_OTHERS = frozenset(
    {"predict_epsilon", "rho", "sigma_data", "sigma_schedule"}
    | {"corrector_order", "noise_sampler_seed", "predictor_order", "tau_func"}
)
"""Unsupported keys of diffusers' schedulers."""


def options_of(name: str) -> dict[str, Option]:
    """Return the options of a scheduler name. Raises: OptionError: an unknown name."""
    return _options(_choice(name).kind)


def served_config(
    config: Mapping[str, Any],
    classes: Collection[str],
    choices: Mapping[str, Collection[str]],
    chosen: str | None,
    substitute: str,
) -> dict[str, Any]:
    """Return a checkpoint's scheduler config as it is served, and report what is ignored.

    Args:
        classes: classes of a checkpoint's scheduler that its family serves.
        choices: options of the schedulers that its requests may name.
        chosen: default scheduler of its requests, which replaces a class that is not served.
        substitute: class of the config then, unless the chosen scheduler's class is served.

    Raises: ValueError: the class is not served, and no scheduler of `choices` is chosen.
    """
    if unknown := sorted(_given(config).keys() - _NAMES):
        notice(f"the scheduler's config has keys that no scheduler has: {', '.join(unknown)}")
    name = config.get("_class_name", "without a _class_name")
    if name in classes:
        return dict(config)
    replacement = resolve_scheduler({"name": chosen or ""}, choices)["name"]
    if replacement not in choices or name in REFUSED:
        why = REFUSED.get(name) or f"{sorted(classes)} are; choose one as the model's scheduler"
        raise ValueError(f"the scheduler {name} is not served: {why}")
    notice(f"the scheduler {name} is not served; {chosen} takes its place")
    # Requests name the scheduler; the class of the config only has to be served.
    kinds = {kind: reference for reference, kind in CLASSES.items() if reference in classes}
    return {**config, "_class_name": kinds.get(CHOICES[replacement].kind, substitute)}


def from_config(config: Mapping[str, Any]) -> Scheduler:
    """Build the scheduler of a checkpoint.

    Raises: ValueError: names the unsupported class or value.
    """
    return _made(_kind(config), config, {})


def for_request(own_config: Mapping[str, Any], chosen: Mapping[str, Any]) -> Scheduler:
    """Build the scheduler of a request, based on the checkpoint's config.

    Equivalent to diffusers' `SomeScheduler.from_config(pipe.scheduler.config, **options)`: the
    checkpoint's values apply wherever the other class has them.

    Args:
        chosen: `name`, also another program's, and any of its options; without a name, options of
            the checkpoint's scheduler.

    Raises: OptionError: names the wrong option.
    """
    options = resolve_scheduler(chosen, OPTIONS)
    name = options.pop("name", None)
    choice = Choice(_kind(own_config)) if name is None else _choice(name)
    allowed = _options(choice.kind)
    for key, value in options.items():
        if key not in allowed:
            raise OptionError(
                key, f"is not an option of {name or 'this scheduler'}: {sorted(allowed)}"
            )
        check_option(key, value, allowed[key])
    return _made(choice.kind, own_config, {**choice.implied, **options})


def solver_of(text: str) -> solver.Solver:
    """Parse a solver from its text form. Raises: ValueError: no solver of `SOLVERS`."""
    return solver.parse(text, SOLVERS)


def _choice(name: Any) -> Choice:
    if name not in CHOICES:
        raise OptionError("name", f"{name!r} must be one of {sorted(CHOICES)}")
    return CHOICES[name]


def _kind(config: Mapping[str, Any]) -> type:
    name = config.get("_class_name", "without a _class_name")
    if name in REFUSED:
        raise ValueError(f"the scheduler {name} is not served: {REFUSED[name]}")
    if name not in CLASSES:
        raise ValueError(f"the scheduler {name} is not served; {sorted(CLASSES)} are")
    return CLASSES[name]


def _options(kind: type) -> dict[str, Option]:
    excluded = _NO_OPTIONS.get(kind, frozenset())
    return {name: of for name, of in options_of_class(kind).items() if name not in excluded}


def _made(kind: type, config: Mapping[str, Any], options: Mapping[str, Any]) -> Scheduler:
    """Build a scheduler from the config keys that its class has, overridden by the options."""
    names = {entry.name for entry in fields(kind)} - _NOT_IN_CONFIGS
    values = {key: value for key, value in _given(config).items() if key in names}
    scheduler: Scheduler = kind(
        **{key: _read(kind, key, value) for key, value in {**values, **options}.items()}
    )
    return scheduler


def _given(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a scheduler's config, without those that diffusers marks as defaults."""
    defaulted = config.get("_use_default_values", ())
    return {
        key: value
        for key, value in config.items()
        if not key.startswith("_") and key not in defaulted
    }


def _read(kind: type, key: str, value: Any) -> Any:
    """Convert the value of a scheduler option in a config.

    Lists become hashable tuples, and integers floats if the option is a number. Values that only
    another scheduler has are replaced by `READ_AS`.
    """
    if isinstance(value, list):
        return tuple(value)
    option = options_of_class(kind).get(key)
    if type(value) is int and option is not None and option.kind == "number":
        return float(value)
    renamed = getattr(kind, "READ_AS", {}).get(key, {})
    return renamed.get(value, value)


_NAMES = (
    _OF_OTHERS
    | {entry.name for kind in CLASSES.values() for entry in fields(kind)} - _NOT_IN_CONFIGS
)

OPTIONS: Mapping[str, Mapping[str, Option]] = {name: options_of(name) for name in CHOICES}
"""Options by request name, for a spec's `schedulers`."""

STEP_LISTS: Mapping[str, frozenset[str]] = {
    name: choice.kind.ACCEPTED_LISTS for name, choice in CHOICES.items()
}
"""Step lists by request name, for a spec's `step_lists`."""

EVALUATIONS: Mapping[str, Evaluations] = {
    name: evaluations
    for name, choice in CHOICES.items()
    if (evaluations := getattr(choice.kind, "EVALUATIONS", ONE_A_STEP)) != ONE_A_STEP
}
"""Evaluations of an image's steps by request name, for a spec's `evaluations`; others have one a
step."""
