"""/v1/loras: adapters that requests may name; upload and delete one's own."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from pydantic import ValidationError

from service.admission.refusals import within_quotas
from service.errors.problems import FieldError, Invalid, NotFound
from service.front_end import lora_uploads
from service.front_end.front_end import Front, Tenant
from service.front_end.lora_uploads import Received
from service.http.form_parts import MemoryPart, Part
from service.http.multipart import read_form
from service.responses.preview import preview_answer
from service.routes.documented_responses import DELETE_LORA, LORA_PREVIEW, UPLOAD_LORA, problems
from service.schemas.request import LoraUpload
from service.schemas.response import LoraPage, LoraView, lora_url, view_lora, view_loras
from service.schemas.unknown_fields import body_errors

router = APIRouter(prefix="/v1/loras", tags=["loras"])

MAX_TEXT_BYTES = 4096
"""Maximum size of a text of the form."""

Name = Annotated[str, Path(description="An adapter's `name`.")]


@router.get("", responses=problems(401, 503))
async def list_loras(front: Front, tenant: Tenant) -> LoraPage:
    """The adapters that the caller's requests may name: the operator's, and uploaded ones."""
    return view_loras(await front.loras.of(tenant))


@router.post("", **UPLOAD_LORA)
async def upload_lora(request: Request, front: Front, tenant: Tenant) -> Response:
    """Upload an adapter for the caller's tenant: a form with the safetensors file and its name.

    It is checked wholly before it is listed: form, names and shapes of its layers, and that all
    numbers are finite. The same file by the same name again is the same adapter.
    """
    client = front.client_of(request, tenant)
    with front.uploads.place(client) as place:
        async with lora_uploads.parts_of(front) as (file, preview):
            texts = {name: MemoryPart(MAX_TEXT_BYTES, name) for name in LoraUpload.model_fields}
            parts: dict[str, Part] = {"file": file, "preview": preview, **texts}
            await read_form(request, parts, arrived=place.arrived)
            place.is_received = True
            form = _form(texts, has_file=file.is_there)
            got = Received(tenant, client, form, file, preview)
            async with within_quotas(front, tenant):
                lora, is_new = await lora_uploads.upload(front, got)
    return Response(
        view_lora(lora).model_dump_json(),
        201 if is_new else 200,
        headers={"Location": lora_url(lora.name)},
        media_type="application/json",
    )


def _form(texts: dict[str, MemoryPart], has_file: bool) -> LoraUpload:
    """Raises: Invalid, Malformed."""
    given = {name: part.text() for name, part in texts.items() if part.is_there}
    errors = [] if has_file else [FieldError("file", "Field required")]
    try:
        form = LoraUpload.model_validate(given)
    except ValidationError as error:
        errors += body_errors(error, LoraUpload)
    if errors:
        raise Invalid(errors)
    return form


@router.get("/{name}", responses=problems(401, 404, 503))
async def get_lora(name: Name, front: Front, tenant: Tenant) -> LoraView:
    """One adapter."""
    return view_lora(await front.loras.get(tenant, name))


@router.delete("/{name}", **DELETE_LORA)
async def delete_lora(name: Name, front: Front, tenant: Tenant) -> Response:
    """Delete an adapter that the tenant has uploaded. Jobs that wait for it fail: `lora_gone`."""
    await lora_uploads.delete(front, tenant, name)
    return Response(status_code=204)


@router.get("/{name}/preview", **LORA_PREVIEW)
async def get_lora_preview(name: Name, request: Request, front: Front, tenant: Tenant) -> Response:
    """The image that shows an adapter."""
    lora = await front.loras.get(tenant, name)
    if lora.preview is None:
        raise NotFound(f"the adapter {name[:80]!r} has no preview")
    client = front.client_of(request, tenant)
    return await preview_answer(front, lora.preview, request.headers, client)
