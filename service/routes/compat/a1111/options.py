"""`options`: the chosen model, which is each sender's own."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict

from service.errors.problems import FieldError, Invalid
from service.http.negotiation import JSON
from service.routes.compat import documents
from service.routes.compat.a1111.bodies import A1111Error
from service.routes.compat.a1111.choice import choose, chosen, image_models
from service.routes.compat.a1111.router import ByKey, router
from service.routes.compat.call import Call
from service.routes.compat.door import DoorBody
from service.routes.compat.entry import entry
from service.routes.documented_responses import shows
from service.schemas.examples import shown

FIXED: dict[str, Any] = {"samples_format": "png", "CLIP_stop_at_last_layers": 1, "sd_vae": "None"}
"""Options that cannot be changed here."""
EXAMPLE = {"sd_model_checkpoint": "sdxl-demo"}
OPTIONS = shows(EXAMPLE | FIXED) | documents.errors(A1111Error, 401, 422, 503)


class A1111Options(DoorBody):
    """Options to set: `sd_model_checkpoint`; any other only as it is."""

    model_config = ConfigDict(extra="allow", json_schema_extra=shown(EXAMPLE))

    sd_model_checkpoint: str | None = None
    """Name of one of `GET /sdapi/v1/sd-models`."""


@router.get(
    "/options", responses=shows(EXAMPLE | FIXED) | documents.errors(A1111Error, 401, 422, 503)
)
async def sdapi_options(call: ByKey) -> dict[str, Any]:
    """Return the options: `sd_model_checkpoint` is the model that this key or address chose."""
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
    """Choose the model of this key's or address's further requests."""
    async with entry(call) as entering:
        asked = await entering.json(A1111Options)
        now = await _options(call)
        wrong = [
            FieldError(name, f"cannot be set here; it is {now.get(name)!r}")
            for name, value in (asked.__pydantic_extra__ or {}).items()
            if value != now.get(name)
        ]
        if wrong:
            raise Invalid(wrong)
        if asked.sd_model_checkpoint is not None:
            await choose(call, asked.sd_model_checkpoint)


async def _options(call: Call) -> dict[str, Any]:
    name = await chosen(call)
    spec = (await image_models(call)).get(name or "")
    checkpoint_hash = spec.fingerprint if spec else None
    return {"sd_model_checkpoint": name, "sd_checkpoint_hash": checkpoint_hash, **FIXED}
