"""A prediction's request in our fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.errors.problems import FieldError, Invalid
from service.routes.compat.names import Names
from service.routes.compat.replicate.bodies import PredictionRequest, ReplicateInput

FIELDS = {
    "num_outputs": "num_images",
    "guidance": "guidance_scale",
    "mask": "mask_image",
    "prompt_strength": "strength",
}
"""Names of inputs that are common there, in ours."""
FORMATS = {"jpg": "jpeg"}


def translated(asked: PredictionRequest, model: str | None) -> dict[str, Any]:
    """Return a request in our fields. Raises: Invalid."""
    names = {name for name in (model, _bare(asked.version), _bare(asked.model)) if name}
    given = asked.input.__pydantic_extra__ or {}
    if len(names) != 1:
        raise Invalid([FieldError("version", "name one model, by version or by model")])
    if asked.webhook or asked.webhook_events_filter:
        said = "is not served; input.webhook has messages, of another shape than Replicate's"
        raise Invalid([FieldError("webhook", said)])
    if "model" in given:
        raise Invalid([FieldError("input.model", "name the model by version, or by the address")])
    ours = {ours: getattr(asked.input, theirs) for theirs, ours in FIELDS.items()}
    scheduler = asked.input.scheduler
    ours["scheduler"] = {"name": scheduler} if isinstance(scheduler, str) else scheduler
    ours["output"] = _output(asked.input)
    chosen = {name: value for name, value in ours.items() if value is not None}
    if twice := sorted(chosen.keys() & given.keys()):
        raise Invalid([FieldError(f"input.{name}", "is there by two names") for name in twice])
    return {**given, **chosen, "model": names.pop()}


def named(body: Mapping[str, Any], model: str | None) -> str | None:
    """Return the model that a body or its address names, before it is checked."""
    name = model or body.get("version") or body.get("model")
    return _bare(name) if isinstance(name, str) else None


def _bare(name: str | None) -> str | None:
    """A model's name without its owner."""
    return name and name.rpartition("/")[2]


def _output(asked: ReplicateInput) -> dict[str, Any] | None:
    given = asked.output_format
    output = {"format": given and FORMATS.get(given, given), "quality": asked.output_quality}
    return {name: value for name, value in output.items() if value is not None} or None


def names_of(asked: PredictionRequest) -> Names:
    """Names of our fields as this request has them."""
    foreign = {"model": "model" if asked.model else "version"}
    for theirs, ours in FIELDS.items():
        if getattr(asked.input, theirs) is not None:
            foreign[ours] = f"input.{theirs}"
    if asked.input.output_format is not None or asked.input.output_quality is not None:
        foreign |= {f"output.{one}": f"input.output_{one}" for one in ("format", "quality")}
    if isinstance(asked.input.scheduler, str):
        foreign["scheduler.name"] = "input.scheduler"
    return Names(foreign, prefix="input.")
