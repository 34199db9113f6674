"""A request's `scheduler` against those that its model has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from models.spec.model_spec import ModelSpec
from service.errors.problems import FieldError


def wrong_scheduler(chosen: Mapping[str, Any], spec: ModelSpec) -> Iterator[FieldError]:
    """Report errors in the scheduler's name and in the options beside it.

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
        elif wrong := options[key].error(chosen[key]):
            yield FieldError(f"scheduler.{key}", wrong)
        elif rivals := [
            other for other in options[key].excludes if chosen[key] and chosen.get(other)
        ]:
            yield FieldError(f"scheduler.{key}", f"cannot be true beside {', '.join(rivals)}")
