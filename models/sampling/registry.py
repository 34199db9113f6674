"""The table of schedulers: by a checkpoint's config, and by a request's name.

Configs are diffusers' `scheduler_config.json`. Checkpoints carry keys of other schedulers along, so
that one can be made from another's config: a key that some scheduler knows and this one does not is
passed over, as in diffusers' from_config; a key that none knows is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from models.sampling import solver
from models.sampling.base import Scheduler
from models.sampling.ddim import DDIM, DDIMStep
from models.sampling.dpm import DPMSolver, DPMStep
from models.sampling.euler import Euler, EulerStep
from models.sampling.euler_ancestral import EulerAncestral, EulerAncestralStep
from models.sampling.flow_match import FlowMatchEuler, FlowMatchStep
from models.sampling.lcm import LCM, LCMStep
from models.sampling.options import check_option, options_of_class
from models.sampling.unipc import UniPC, UniPCStep
from models.spec.option import Option


class Entry(NamedTuple):
    """A scheduler that is served: one row of the table."""

    reference: str
    """diffusers' class: the `_class_name` of a checkpoint's config, and an alias in requests."""
    kind: Any
    """The class, a `Scheduler`."""
    solver: type[solver.Solver]
    """Solver of its steps."""
    names: Mapping[str, Mapping[str, Any]]
    """Names of requests, each with the options that it sets unless the request does."""


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
        },
    ),
    Entry("UniPCMultistepScheduler", UniPC, UniPCStep, {"unipc": {}}),
    Entry("LCMScheduler", LCM, LCMStep, {"lcm": {}}),
    Entry(
        "FlowMatchEulerDiscreteScheduler", FlowMatchEuler, FlowMatchStep, {"flow_match_euler": {}}
    ),
)
"""Schedulers that are served; what follows is made of it."""

CLASSES: Mapping[str, type] = {one.reference: one.kind for one in SCHEDULERS}
SOLVERS: tuple[type[solver.Solver], ...] = tuple(one.solver for one in SCHEDULERS)

_EDM = "networks in EDM's preconditioning, by sigma_data, are not served"
REFUSED: Mapping[str, str] = {
    "EDMEulerScheduler": _EDM,
    "EDMDPMSolverMultistepScheduler": _EDM,
}
"""Classes that no scheduler here can stand in for, and why."""


@dataclass(frozen=True)
class Choice:
    """Meaning of a request's scheduler name."""

    kind: Any
    """The class, a `Scheduler`."""
    implied: Mapping[str, Any] = field(default_factory=dict)
    """Options that the name sets unless the request does."""


CHOICES: Mapping[str, Choice] = {
    **{
        name: Choice(one.kind, implied) for one in SCHEDULERS for name, implied in one.names.items()
    },
    **{name: Choice(kind) for name, kind in CLASSES.items()},
}
"""Choices by the `name` of a request's scheduler; diffusers' class names are aliases."""

_NOT_IN_CONFIGS = frozenset({"eta"})
"""Options that diffusers' pipelines take instead of its schedulers."""
_NO_OPTIONS: Mapping[type, frozenset[str]] = {
    DPMSolver: frozenset({"sigma_min", "sigma_max"}),
    UniPC: frozenset({"use_dynamic_shifting"}),
    FlowMatchEuler: frozenset({"use_dynamic_shifting", "invert_sigmas", "stochastic_sampling"}),
}
"""Keys that a request may not set: diffusers' class reads them from a config but takes no such
options, or only one value of them is served."""
_OF_OTHERS = frozenset(
    {"predict_epsilon", "rho", "sigma_data", "sigma_schedule", "skip_prk_steps"}
    | {"corrector_order", "noise_sampler_seed", "predictor_order", "tau_func"}
)
"""Keys of diffusers' schedulers that are not served."""


def options_of(name: str) -> dict[str, Option]:
    """The options of a request's scheduler `name`.

    Raises: ValueError for an unknown name.
    """
    return _options(_choice(name).kind)


def from_config(config: Mapping[str, Any]) -> Scheduler:
    """The scheduler of a checkpoint.

    Raises: ValueError, naming the class or the key that is not served.
    """
    return _made(_kind(config), config, {})


def for_request(own_config: Mapping[str, Any], chosen: Mapping[str, Any]) -> Scheduler:
    """The scheduler that a request asks for, over what the checkpoint's own config says.

    It is diffusers' `SomeScheduler.from_config(pipe.scheduler.config, **options)`: values of the
    checkpoint carry over wherever the other class knows them.

    Args:
        chosen: `name` and any of its options; without a name, options of the checkpoint's own.

    Raises: ValueError, naming the option that is wrong.
    """
    options = dict(chosen)
    name = options.pop("name", None)
    choice = Choice(_kind(own_config)) if name is None else _choice(name)
    known = _options(choice.kind)
    for key, value in options.items():
        if key not in known:
            raise ValueError(f"{key} is no option of {name or 'this scheduler'}: {sorted(known)}")
        check_option(key, value, known[key])
    return _made(choice.kind, own_config, {**choice.implied, **options})


def solver_of(text: str) -> solver.Solver:
    """A solver by its text form. Raises: ValueError: it is none of `SOLVERS`."""
    return solver.parse(text, SOLVERS)


def _choice(name: Any) -> Choice:
    if name not in CHOICES:
        raise ValueError(f"the scheduler {name!r} is none of {sorted(CHOICES)}")
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
    """Build it from what the class knows of the config, then the options."""
    defaulted = config.get("_use_default_values", ())
    given = {
        key: value
        for key, value in config.items()
        if not key.startswith("_") and key not in defaulted
    }
    unknown = sorted(given.keys() - _KNOWN)
    if unknown:
        raise ValueError(f"the scheduler's config has keys not served here: {unknown}")
    own = {entry.name for entry in fields(kind)} - _NOT_IN_CONFIGS
    values = {key: value for key, value in given.items() if key in own}
    return kind(**{key: _read(kind, key, value) for key, value in {**values, **options}.items()})


def _read(kind: type, key: str, value: Any) -> Any:
    """Return a scheduler's option as this house reads it.

    Lists as hashable tuples, whole numbers as floats where those are meant, another scheduler's
    word as this one's.
    """
    if isinstance(value, list):
        return tuple(value)
    option = options_of_class(kind).get(key)
    if type(value) is int and option is not None and option.kind == "number":
        return float(value)
    renamed = getattr(kind, "READ_AS", {}).get(key, {})
    return renamed.get(value, value)


_KNOWN = (
    _OF_OTHERS
    | {entry.name for kind in CLASSES.values() for entry in fields(kind)} - _NOT_IN_CONFIGS
)

OPTIONS: Mapping[str, Mapping[str, Option]] = {name: options_of(name) for name in CHOICES}
"""Options of every name that a request may use, for a spec's `schedulers`."""

STEP_LISTS: Mapping[str, frozenset[str]] = {
    name: choice.kind.TAKES for name, choice in CHOICES.items()
}
"""Step lists of every name, for a spec's `step_lists`."""
