"""Validation of a request's `scheduler` against its model's schedulers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from models.spec.model_spec import ModelSpec
from service.errors.problems import FieldError


def wrong_scheduler(chosen: Mapping[str, Any], spec: ModelSpec) -> Iterator[FieldError]:
    """Report errors in the scheduler's name and options.

    Args:
        chosen: `name`, and options by name.
    """
    name = chosen["name"]
    if name not in spec.schedulers:
        available = ", ".join(spec.schedulers) or "none but the checkpoint's own"
        message = f"the model {spec.name!r} has no scheduler {name!r}; available: {available}"
        yield FieldError("scheduler.name", message)
        return
    options = spec.schedulers[name]
    for key in sorted(chosen.keys() - {"name"}):
        if key not in options:
            takes = ", ".join(sorted(options)) or "no options"
            yield FieldError(f"scheduler.{key}", f"{name} accepts {takes}")
        elif wrong := options[key].error(chosen[key]):
            yield FieldError(f"scheduler.{key}", wrong)
        elif rivals := [
            other for other in options[key].excludes if chosen[key] and chosen.get(other)
        ]:
            yield FieldError(
                f"scheduler.{key}", f"cannot be true together with {', '.join(rivals)}"
            )
