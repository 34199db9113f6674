"""`png-info`: read the generation parameters embedded in an image file by any program."""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic import BaseModel, ConfigDict

from models.media.image_files import ImageFileError
from service.admission.input_files import from_base64
from service.errors.problems import FieldError, Invalid
from service.http.negotiation import JSON
from service.routes.compat import documents
from service.routes.compat.a1111.bodies import A1111Error
from service.routes.compat.a1111.router import ByKey, router
from service.routes.compat.call import Call
from service.routes.compat.endpoint import CompatibleRequestBody
from service.routes.compat.incoming_request import receive_request
from service.schemas.examples import PIXEL, schema_example
from service.schemas.request_parts import ImageData

TEXT = "a cat\nSteps: 20, Sampler: Euler, Seed: 7"


class A1111PngInfo(CompatibleRequestBody):
    """Request of AUTOMATIC1111's `png-info`: an image file to read."""

    model_config = ConfigDict(json_schema_extra=schema_example({"image": PIXEL}))

    image: ImageData
    """PNG, JPEG or WebP in base64."""


class A1111FileInfo(BaseModel):
    """Response of AUTOMATIC1111's `png-info`: generation parameters embedded in a file."""

    model_config = ConfigDict(
        use_attribute_docstrings=True,
        json_schema_extra=schema_example(
            {
                "info": TEXT,
                "items": {"parameters": TEXT},
                "parameters": {"Prompt": "a cat", "Negative prompt": "", "Seed": "7"},
            }
        ),
    )

    info: str
    """Text of the `parameters` chunk; empty if the file has none."""
    items: dict[str, str]
    """The text, by its chunk's name."""
    parameters: dict[str, Any]
    """The parsed parameters, by AUTOMATIC1111's names."""


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
    """Read the generation parameters embedded in an image file."""
    async with receive_request(call) as incoming:
        body = await incoming.json(A1111PngInfo)
        text, parameters = await _parameters(call, body.image)
    items = {"parameters": text} if text else {}
    return A1111FileInfo(info=text, items=items, parameters=parameters)


async def _parameters(call: Call, image: str) -> tuple[str, dict[str, str]]:
    """Return an image file's generation parameters as text and as a mapping. Raises: Invalid."""
    try:
        data = await asyncio.to_thread(from_base64, image)
        return await call.front.images.parameters(data, call.client)
    except ImageFileError as error:
        raise Invalid([FieldError("image", str(error))]) from error
