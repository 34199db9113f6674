"""Model of a request: the one it names, else the one that its sender has chosen.

There is no model that all clients share: what one chooses is that one's, by its key or, where no
keys are wanted, by its address.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.spec.model_spec import ModelSpec
from service.errors.problems import FieldError, Invalid
from service.routes.compat.a1111.bodies import TextToImage
from service.routes.compat.call import Call
from service.routes.compat.names import Names, renaming


async def image_models(call: Call) -> dict[str, ModelSpec]:
    """Return the models that make images, by name."""
    known = await call.front.models.all()
    return {name: known[name].spec for name in sorted(known) if _makes_images(known[name].spec)}


def _makes_images(spec: ModelSpec) -> bool:
    return not any(task.endswith("-to-video") for task in spec.tasks)


async def chosen(call: Call) -> str | None:
    """Return the name of the sender's model: by default the first; None: there is none."""
    names = await image_models(call)
    choice = await call.front.queue.chosen_model(call.sender)
    return choice if choice in names else next(iter(names), None)


async def choose(call: Call, name: str) -> None:
    """Record a sender's choice. Raises: Problem: there is no such model."""
    spec = await _named(call, name, "sd_model_checkpoint")
    await call.front.queue.choose_model(call.sender, spec.name)


def named(body: Mapping[str, Any]) -> Any:
    """Return the model that a body names, before it is checked."""
    options = body.get("override_settings")
    return options.get("sd_model_checkpoint") if isinstance(options, dict) else None


async def model_of(call: Call, asked: TextToImage) -> ModelSpec:
    """Return the model of a request. Raises: Problem: there is no such one."""
    options = asked.override_settings or {}
    name = options.get("sd_model_checkpoint") or await chosen(call)
    return await _named(call, name, "override_settings.sd_model_checkpoint")


async def _named(call: Call, name: str | None, field: str) -> ModelSpec:
    if name is not None and not isinstance(name, str):
        raise Invalid([FieldError(field, "must be a text")])
    with renaming(Names({"model": field})):
        spec = (await call.front.models.get(name)).spec
    if not _makes_images(spec):
        there_are = ", ".join(await image_models(call)) or "none"
        said = f"{spec.name!r} makes videos, which this API cannot ask for; of images there is "
        raise Invalid([FieldError(field, said + there_are)])
    return spec
