"""`txt2img` and `img2img`: generate images and wait for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fastapi import Response

from models.spec.model_spec import ModelSpec
from service.http.inflight_limits import Hold
from service.http.negotiation import JSON
from service.jobs.model.job import Job
from service.routes.compat import documents
from service.routes.compat.a1111 import masks, results
from service.routes.compat.a1111.bodies import A1111Error, ImageToImage, TextToImage
from service.routes.compat.a1111.control_units import alwayson_scripts, controls_of
from service.routes.compat.a1111.lists import model_in_body, model_of
from service.routes.compat.a1111.router import ByKey, router
from service.routes.compat.a1111.translation import (
    field_names,
    to_generate_fields,
    warnings_of,
)
from service.routes.compat.call import Call
from service.routes.compat.incoming_request import receive_request
from service.routes.compat.light_bodies import without_images
from service.routes.compat.outcome import json_once_ended, wait_for_success

RESPONSE_CONTENT = {JSON: documents.schema_of(results.A1111Images)}


@router.post(
    "/txt2img",
    **documents.operation({JSON: documents.schema_of(TextToImage)}, RESPONSE_CONTENT, A1111Error),
)
async def sdapi_txt2img(call: ByKey) -> Response:
    """Generate images from a prompt, for AUTOMATIC1111's clients."""
    return await _generate(call, TextToImage)


@router.post(
    "/img2img",
    **documents.operation({JSON: documents.schema_of(ImageToImage)}, RESPONSE_CONTENT, A1111Error),
)
async def sdapi_img2img(call: ByKey) -> Response:
    """Generate images from an input image, or regenerate it where a mask is white."""
    return await _generate(call, ImageToImage)


async def _generate(call: Call, kind: type[TextToImage]) -> Response:
    with call.waiting() as waiting, call.front.bodies.holding(call.client) as kept:
        job, request = await _admit(call, kind, kept)
        still_kept = kept.transfer()

        async def build() -> Response:
            with still_kept:
                async with _registered_as_waiting(call, job):
                    ended = await wait_for_success(call, job)
                return await results.answer(call, request.body, request.spec, ended, request.masked)

        return await json_once_ended(call, job, waiting, build)


@dataclass(frozen=True)
class _KeptRequest:
    """Parts of a request that its response needs: the body without images, and pasted files."""

    body: TextToImage
    spec: ModelSpec
    masked: masks.MaskedRequest | None


async def _admit(call: Call, kind: type[TextToImage], kept: Hold) -> tuple[Job, _KeptRequest]:
    """Admit a request.

    Args:
        kept: counts the bytes that are kept while the job runs.

    Raises: Problem.
    """
    async with receive_request(call) as incoming:
        body = await incoming.json(kind, model_in_body)
        spec = await model_of(call, body)
        fields = to_generate_fields(body, spec)
        controls = controls_of(alwayson_scripts(body), spec, fields.get("image"))
        masked = await masks.prepare_masked_request(call, body, spec)
        if pasted := masked and masked.pasted:
            kept.add(pasted.bytes)
        job = await incoming.admit(
            fields | controls.fields | (masked.fields if masked else {}),
            field_names(body, spec),
            warnings=[*controls.warnings, *warnings_of(body, spec)],
        )
        return job, _KeptRequest(without_images(body), spec, pasted)


@asynccontextmanager
async def _registered_as_waiting(call: Call, job: Job) -> AsyncIterator[None]:
    """Record that the sender waits for the job, for `progress` and `interrupt`."""
    await call.front.queue.add_waiting_job(call.sender, job.id)
    try:
        yield
    finally:
        await call.front.queue.remove_waiting_job(call.sender, job.id)
