"""Model of a request: named in the request, or else chosen by its sender through `options`.

Each sender has a separate choice, by API key or, if keys are not required, by address.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.spec.lora import without_ending
from models.spec.model_spec import ModelSpec
from service.errors.problems import FieldError, Invalid
from service.routes.compat.a1111.bodies import TextToImage
from service.routes.compat.call import Call
from service.routes.compat.names import FieldNames, renaming


async def image_models(call: Call) -> dict[str, ModelSpec]:
    """Return the specifications of the models that generate images, by name."""
    models = await call.front.models.all()
    return {name: models[name].spec for name in sorted(models) if _makes_images(models[name].spec)}


def _makes_images(spec: ModelSpec) -> bool:
    return not any(task.endswith("-to-video") for task in spec.tasks)


async def selected_model(call: Call) -> str | None:
    """Return the name of the sender's model, by default the first; None: no model exists."""
    names = await image_models(call)
    choice = await call.front.queue.chosen_model(call.sender)
    return choice if choice in names else next(iter(names), None)


async def select_model(call: Call, name: str) -> None:
    """Store the sender's choice of a model. Raises: Problem: no such model."""
    spec = await _image_model(call, name, "sd_model_checkpoint")
    await call.front.queue.choose_model(call.sender, spec.name)


def model_in_body(body: Mapping[str, Any]) -> Any:
    """Return the model that an unvalidated AUTOMATIC1111 body names."""
    options = body.get("override_settings")
    return options.get("sd_model_checkpoint") if isinstance(options, dict) else None


async def model_of(call: Call, body: TextToImage) -> ModelSpec:
    """Return the specification of the model for an AUTOMATIC1111 request.

    Raises: Problem: no such model.
    """
    options = body.override_settings or {}
    name = options.get("sd_model_checkpoint") or await selected_model(call)
    return await _image_model(call, name, "override_settings.sd_model_checkpoint")


async def _without_file(call: Call, name: str) -> str:
    """Return the model name in an AUTOMATIC1111 checkpoint title, without hash and extension.

    AUTOMATIC1111's titles are `NAME.safetensors [HASH]`.
    """
    models = call.front.models
    plain = without_ending(name.rpartition(" [")[0] if name.endswith("]") else name)
    names = await models.all()
    return plain if name not in names and models.name_of(plain) in names else name


async def _image_model(call: Call, name: str | None, field: str) -> ModelSpec:
    if name is not None and not isinstance(name, str):
        raise Invalid([FieldError(field, "must be a text")])
    with renaming(FieldNames({"model": field})):
        spec = (await call.front.models.get(name and await _without_file(call, name))).spec
    if not _makes_images(spec):
        names = ", ".join(await image_models(call)) or "none"
        message = f"{spec.name!r} generates videos, which this API does not support; image models: "
        raise Invalid([FieldError(field, message + names)])
    return spec
