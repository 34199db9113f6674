"""Scheduler options, derived from dataclass fields: allowed values, and checks of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from types import MappingProxyType
from typing import Any, get_args, get_type_hints

from models.sampling.sigmas import SPACINGS
from models.spec.option import Kind, Option, OptionError

_KINDS: Mapping[type, Kind] = {bool: "boolean", int: "integer", float: "number", str: "text"}
_RANGES: Mapping[str, tuple[float | None, float | None]] = {
    "num_train_timesteps": (2, 100_000),
    "beta_start": (0, 1),
    "beta_end": (0, 1),
    "steps_offset": (0, None),
    "sigma_min": (0, None),
    "sigma_max": (0, None),
    "eta": (0, 1),
    "clip_sample_range": (0, None),
    "dynamic_thresholding_ratio": (0, 1),
    "sample_max_value": (0, None),
    "flow_shift": (0, None),
    "shift": (0, None),
    "original_inference_steps": (1, None),
    "timestep_scaling": (0, None),
}
"""Minimum and maximum by option; a scheduler's own RANGES take precedence."""


@cache  # called for every request, and Python compiles each annotation on every call
def options_of_class(kind: type) -> Mapping[str, Option]:
    """Return every scalar field of a scheduler's dataclass as an `Option` for the front end."""
    kinds = ((field.name, _kind_of(_hints(kind)[field.name])) for field in fields(kind))
    options = {name: _option(kind, name, of) for name, of in kinds if of is not None}
    return MappingProxyType(options)


_hints = cache(get_type_hints)


def _option(kind: type, name: str, of: Kind) -> Option:
    ranges = {**_RANGES, **getattr(kind, "RANGES", {})}
    low, high = ranges.get(name, (None, None))
    choices = getattr(kind, "CHOICES", {}).get(name, ())
    others = tuple(sorted(SPACINGS.keys() - {name})) if name in SPACINGS else ()
    return Option(kind=of, choices=choices, minimum=low, maximum=high, excludes=others)


def _kind_of(hint: Any) -> Kind | None:
    """Return the option kind of a type hint: `float`, `float | None` → number; a tuple → None."""
    members = [member for member in get_args(hint) or (hint,) if member is not type(None)]
    return _KINDS.get(members[0]) if len(members) == 1 else None


def check_options(scheduler: Any) -> None:
    """Check the options of a scheduler instance.

    Raises: OptionError: names the first field with an invalid value.
    """
    kind = scheduler.__class__
    hints = _hints(kind)
    for name, option in options_of_class(kind).items():
        value = getattr(scheduler, name)
        if value is not None or type(None) not in get_args(hints[name]):
            check_option(name, value, option)


def check_option(name: str, value: Any, option: Option) -> None:
    """Validate the value of one scheduler option.

    Raises: OptionError: the value is not allowed.
    """
    if wrong := option.error(value):
        raise OptionError(name, f"{wrong}, not {value!r}")
