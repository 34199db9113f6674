"""`txt2img` and `img2img`: make images, and wait for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Response

from service.http.negotiation import JSON
from service.jobs.model.job import Job
from service.responses.render import naming_the_job
from service.routes.compat import documents
from service.routes.compat.a1111 import masks, results
from service.routes.compat.a1111.bodies import A1111Error, ImageToImage, TextToImage
from service.routes.compat.a1111.choice import model_of, named
from service.routes.compat.a1111.router import ByKey, router
from service.routes.compat.a1111.translation import names_of, translated
from service.routes.compat.call import Call
from service.routes.compat.entry import entry
from service.routes.compat.outcome import ended

ANSWER = {JSON: documents.schema_of(results.A1111Images)}


@router.post(
    "/txt2img",
    **documents.operation({JSON: documents.schema_of(TextToImage)}, ANSWER, A1111Error),
)
async def sdapi_txt2img(call: ByKey) -> Response:
    """Make images of a prompt, as AUTOMATIC1111's clients ask for them."""
    return await _made(call, TextToImage)


@router.post(
    "/img2img",
    **documents.operation({JSON: documents.schema_of(ImageToImage)}, ANSWER, A1111Error),
)
async def sdapi_img2img(call: ByKey) -> Response:
    """Make images of another one, or redraw it where a mask is white."""
    return await _made(call, ImageToImage)


async def _made(call: Call, kind: type[TextToImage]) -> Response:
    with call.waiting():
        async with entry(call) as entering:
            asked = await entering.json(kind, named)
            spec = await model_of(call, asked)
            fields = translated(asked, spec)
            masked = await masks.prepared(call, asked, spec)
            job = await entering.admit(fields | (masked.fields if masked else {}), names_of(asked))
        with naming_the_job(job):
            async with _at_work(call, job):
                job = await ended(call, job)
            return await results.answer(call, asked, spec, job, masked)


@asynccontextmanager
async def _at_work(call: Call, job: Job) -> AsyncIterator[None]:
    """Record that the sender waits for the job, for `progress` and `interrupt`."""
    await call.front.queue.begin_at_door(call.sender, job.id)
    try:
        yield
    finally:
        await call.front.queue.end_at_door(call.sender, job.id)
