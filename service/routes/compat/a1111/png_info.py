"""`png-info`: what a file says of how it was made, whoever wrote it."""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic import BaseModel, ConfigDict

from models.spec.image_files import ImageFileError
from service.admission.request_images import from_base64
from service.errors.problems import FieldError, Invalid
from service.http.negotiation import JSON
from service.routes.compat import documents
from service.routes.compat.a1111.bodies import A1111Error
from service.routes.compat.a1111.router import ByKey, router
from service.routes.compat.call import Call
from service.routes.compat.door import DoorBody
from service.routes.compat.entry import entry
from service.schemas.examples import PIXEL, shown
from service.schemas.request_parts import Picture

TEXT = "a cat\nSteps: 20, Sampler: Euler, Seed: 7"


class A1111PngInfo(DoorBody):
    """File to read."""

    model_config = ConfigDict(json_schema_extra=shown({"image": PIXEL}))

    image: Picture
    """PNG, JPEG or WebP in base64."""


class A1111FileInfo(BaseModel):
    """Texts that a file holds."""

    model_config = ConfigDict(
        use_attribute_docstrings=True,
        json_schema_extra=shown(
            {
                "info": TEXT,
                "items": {"parameters": TEXT},
                "parameters": {"Prompt": "a cat", "Negative prompt": "", "Seed": "7"},
            }
        ),
    )

    info: str
    """Text `parameters`; empty where the file has none."""
    items: dict[str, str]
    """The text by its name."""
    parameters: dict[str, Any]
    """The same by AUTOMATIC1111's names."""


@router.post(
    "/png-info",
    responses=documents.errors(A1111Error, *documents.ADMITTING),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {JSON: documents.schema_of(A1111PngInfo)},
        }
    },
)
async def sdapi_png_info(call: ByKey) -> A1111FileInfo:
    """Read the parameters in an image file."""
    async with entry(call) as entering:
        asked = await entering.json(A1111PngInfo)
        text, parameters = await _parameters(call, asked.image)
    items = {"parameters": text} if text else {}
    return A1111FileInfo(info=text, items=items, parameters=parameters)


async def _parameters(call: Call, image: str) -> tuple[str, dict[str, str]]:
    """Return the text in a file, and its parameters. Raises: Invalid."""
    try:
        data = await asyncio.to_thread(from_base64, image)
        return await call.front.images.parameters(data, call.client)
    except ImageFileError as error:
        raise Invalid([FieldError("image", str(error))]) from error
