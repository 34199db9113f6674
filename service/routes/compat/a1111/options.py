"""`options`: read and set the sender's chosen model."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict

from service.errors.problems import Invalid
from service.http.negotiation import JSON
from service.routes.compat import documents
from service.routes.compat.a1111 import unsupported_fields
from service.routes.compat.a1111.bodies import A1111Error
from service.routes.compat.a1111.lists import image_models, select_model, selected_model
from service.routes.compat.a1111.router import ByKey, router
from service.routes.compat.call import Call
from service.routes.compat.endpoint import CompatibleRequestBody
from service.routes.compat.incoming_request import receive_request
from service.routes.documented_responses import with_example
from service.schemas.examples import schema_example

FIXED: dict[str, Any] = {"samples_format": "png", "CLIP_stop_at_last_layers": 1, "sd_vae": "None"}
"""Options that cannot be changed."""
EXAMPLE = {"sd_model_checkpoint": "sdxl-demo"}
OPTIONS = with_example(EXAMPLE | FIXED) | documents.errors(A1111Error, 401, 422, 503)


class A1111Options(CompatibleRequestBody):
    """AUTOMATIC1111 options to set: `sd_model_checkpoint`.

    Those of `override_settings` are accepted, too, if they would not change the image.
    """

    model_config = ConfigDict(extra="allow", json_schema_extra=schema_example(EXAMPLE))

    sd_model_checkpoint: str | None = None
    """Name of a model of `GET /sdapi/v1/sd-models`."""


@router.get(
    "/options",
    responses=with_example(EXAMPLE | FIXED) | documents.errors(A1111Error, 401, 422, 503),
)
async def sdapi_options(call: ByKey) -> dict[str, Any]:
    """Return AUTOMATIC1111's options; `sd_model_checkpoint` is the model that this sender chose."""
    return await _options(call)


@router.post(
    "/options",
    responses=documents.errors(A1111Error, *documents.ADMITTING),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {JSON: documents.schema_of(A1111Options)},
        }
    },
)
async def sdapi_set_options(call: ByKey) -> None:
    """Choose the model of later requests with this key or from this address."""
    async with receive_request(call) as incoming:
        body = await incoming.json(A1111Options)
        current = await _options(call)
        changed = {
            name: value
            for name, value in (body.__pydantic_extra__ or {}).items()
            if name not in current or value != current[name]
        }
        if errors := [*unsupported_fields.wrong_options(changed)]:
            raise Invalid(errors)
        if body.sd_model_checkpoint is not None:
            await select_model(call, body.sd_model_checkpoint)


async def _options(call: Call) -> dict[str, Any]:
    name = await selected_model(call)
    spec = (await image_models(call)).get(name or "")
    checkpoint_hash = spec.fingerprint if spec else None
    return {"sd_model_checkpoint": name, "sd_checkpoint_hash": checkpoint_hash, **FIXED}
