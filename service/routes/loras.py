"""/v1/loras: list adapters that requests may name; upload and delete the tenant's own."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from pydantic import ValidationError

from service.admission.refusals import within_quotas
from service.errors.problems import FieldError, Invalid, NotFound
from service.front_end import lora_uploads
from service.front_end.front_end import Front, Tenant
from service.front_end.lora_uploads import ReceivedUpload
from service.http.form_parts import MemoryPart, Part
from service.http.multipart import read_form
from service.responses.preview import preview_answer
from service.routes.documented_responses import DELETE_LORA, LORA_PREVIEW, UPLOAD_LORA, problems
from service.schemas.request import LoraUpload
from service.schemas.response import LoraPage, LoraView, lora_url, view_lora, view_loras
from service.schemas.unknown_fields import body_errors

router = APIRouter(prefix="/v1/loras", tags=["loras"])

MAX_TEXT_BYTES = 4096
"""Maximum size of a text field of the form."""

Name = Annotated[str, Path(description="An adapter's `name`.")]


@router.get("", responses=problems(401, 503))
async def list_loras(front: Front, tenant: Tenant) -> LoraPage:
    """List the adapters that the caller's requests may name: the operator's, and uploaded ones."""
    return view_loras(await front.loras.of(tenant))


@router.post("", **UPLOAD_LORA)
async def upload_lora(request: Request, front: Front, tenant: Tenant) -> Response:
    """Upload an adapter for the caller's tenant: a form with the safetensors file and its name.

    The whole file is checked before the adapter is listed: format, names and shapes of its layers,
    and that all numbers are finite. Repeating the upload of a file by the same name returns the
    same adapter.
    """
    client = front.client_of(request, tenant)
    with front.uploads.slot(client) as place:
        async with lora_uploads.parts_of(front) as (file, preview):
            texts = {name: MemoryPart(MAX_TEXT_BYTES, name) for name in LoraUpload.model_fields}
            parts: dict[str, Part] = {"file": file, "preview": preview, **texts}
            await read_form(request, parts, arrived=place.arrived)
            place.is_received = True
            form = _form(texts, has_file=file.is_present)
            received = ReceivedUpload(tenant, client, form, file, preview)
            async with within_quotas(front, tenant):
                lora, is_new = await lora_uploads.upload(front, received)
    return Response(
        view_lora(lora).model_dump_json(),
        201 if is_new else 200,
        headers={"Location": lora_url(lora.name)},
        media_type="application/json",
    )


def _form(texts: dict[str, MemoryPart], has_file: bool) -> LoraUpload:
    """Validate the text fields of the upload form. Raises: Invalid, Malformed."""
    fields = {name: part.text() for name, part in texts.items() if part.is_present}
    errors = [] if has_file else [FieldError("file", "is required")]
    try:
        form = LoraUpload.model_validate(fields)
    except ValidationError as error:
        errors += body_errors(error, LoraUpload)
    if errors:
        raise Invalid(errors)
    return form


@router.get("/{name}", responses=problems(401, 404, 503))
async def get_lora(name: Name, front: Front, tenant: Tenant) -> LoraView:
    """Return an adapter by its name."""
    return view_lora(await front.loras.get(tenant, name))


@router.delete("/{name}", **DELETE_LORA)
async def delete_lora(name: Name, front: Front, tenant: Tenant) -> Response:
    """Delete an adapter that the tenant uploaded. Jobs that wait for it fail with `lora_gone`."""
    await lora_uploads.delete(front, tenant, name)
    return Response(status_code=204)


@router.get("/{name}/preview", **LORA_PREVIEW)
async def get_lora_preview(name: Name, request: Request, front: Front, tenant: Tenant) -> Response:
    """Download the preview image of an adapter."""
    lora = await front.loras.get(tenant, name)
    if lora.preview is None:
        raise NotFound(f"the adapter {name[:80]!r} has no preview")
    client = front.client_of(request, tenant)
    return await preview_answer(front, lora.preview, request.headers, client)
