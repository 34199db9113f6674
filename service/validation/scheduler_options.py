"""A request's `scheduler` against those that its model has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from models.spec.model_spec import ModelSpec, Option
from service.errors.problems import FieldError

KINDS: Mapping[str, tuple[Any, str]] = {
    "number": ((int, float), "a number"),
    "integer": ((int,), "a whole number"),
    "boolean": ((bool,), "true or false"),
    "text": ((str,), "a text"),
}
"""What JSON values an option of a kind may have, and how that is called."""


def wrong_scheduler(chosen: Mapping[str, Any], spec: ModelSpec) -> Iterator[FieldError]:
    """What is wrong with the name, or with the options beside it.

    Args:
        chosen: `name`, and options by name.
    """
    name = chosen["name"]
    if name not in spec.schedulers:
        there_is = ", ".join(spec.schedulers) or "none but the checkpoint's own"
        said = f"the model {spec.name!r} has no scheduler {name!r}; there is {there_is}"
        yield FieldError("scheduler.name", said)
        return
    options = spec.schedulers[name]
    for key in sorted(chosen.keys() - {"name"}):
        if key not in options:
            takes = ", ".join(sorted(options)) or "no options"
            yield FieldError(f"scheduler.{key}", f"{name} takes {takes}")
        elif wrong := mistake(options[key], chosen[key]):
            yield FieldError(f"scheduler.{key}", wrong)
        elif rivals := [
            other for other in options[key].excludes if chosen[key] and chosen.get(other)
        ]:
            yield FieldError(f"scheduler.{key}", f"cannot be true beside {', '.join(rivals)}")


def mistake(option: Option, value: Any) -> str | None:
    """What is wrong with an option's value; None: nothing."""
    types, called = KINDS[option.kind]
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        return f"must be {called}"
    if option.choices and value not in option.choices:
        return f"must be {' or '.join(option.choices)}"
    if option.minimum is not None and value < option.minimum:
        return f"must be {option.minimum:g} at least"
    if option.maximum is not None and value > option.maximum:
        return f"must be {option.maximum:g} at most"
    return None
