"""Route of OpenAI's Responses API with the tool `image_generation`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Response

from service.http.inflight_limits import HeldResponse
from service.http.negotiation import EVENTS, JSON
from service.jobs.model.job import FieldWarning, Job
from service.responses.json_content import in_thread_if_large
from service.responses.render import job_headers as headers_of
from service.responses.render import job_headers_on_errors
from service.routes.compat import documents
from service.routes.compat.call import ByBearer, Call, documented
from service.routes.compat.endpoint import CompatibleEndpoint
from service.routes.compat.incoming_request import IncomingRequest, receive_request
from service.routes.compat.light_bodies import without_images
from service.routes.compat.names import renaming
from service.routes.compat.openai.chat_requests import names_in
from service.routes.compat.openai.errors import ADMITTING, OpenAIError, openai_error
from service.routes.compat.openai.examples import PARTIAL
from service.routes.compat.openai.image_admission import admit_images, input_images
from service.routes.compat.openai.image_stream import PartialImages
from service.routes.compat.openai.job_stream import stream_job
from service.routes.compat.openai.response_answers import (
    ResponseEvents,
    ResponseView,
    to_response,
)
from service.routes.compat.openai.response_requests import (
    INPUT,
    TOOL,
    ResponseRequest,
    ignored_fields,
    to_image_request,
)
from service.routes.compat.outcome import (
    json_once_ended,
    read_output_files,
    wait_for_success,
)

PATH = "/v1/responses"

router = APIRouter(tags=["openai responses"], dependencies=documented("bearer"))

DOCUMENTS = documents.operation(
    {JSON: documents.schema_of(ResponseRequest)},
    {
        JSON: documents.schema_of(ResponseView),
        EVENTS: documents.stream_of(
            {"type": "object"}, f"event: {PARTIAL['type']}\ndata: {json.dumps(PARTIAL)}\n\n"
        ),
    },
    OpenAIError,
    fails=ADMITTING,
)


@router.post(PATH, **DOCUMENTS)
async def create_response(call: ByBearer) -> Response:
    """Generate an image from the input, as `responses.create` with the tool `image_generation`."""
    with call.waiting() as waiting:
        job, body = await _received(call)
        with job_headers_on_errors(job):
            if body.stream:
                partials = PartialImages(body.tool().partial_images or 0)
                return stream_job(call, job, ResponseEvents(job, partials), waiting)

        async def build() -> Response:
            return await _answer(call, await wait_for_success(call, job))

        return await json_once_ended(call, job, waiting, build)


def _model_in_body(body: Mapping[str, Any]) -> Any:
    """Return the model that an unvalidated Responses API body names, in its tool or itself."""
    tools = body.get("tools")
    for tool in tools if isinstance(tools, list) else ():
        if isinstance(tool, dict) and tool.get("type") == TOOL and tool.get("model"):
            return tool["model"]
    return body.get("model")


async def _received(call: Call) -> tuple[Job, ResponseRequest]:
    """Admit a request; return its job, and its body without images. Raises: Problem."""
    async with receive_request(call) as incoming:
        body = await incoming.json(ResponseRequest, _model_in_body)
        return await _admit(incoming, body), without_images(body)


async def _admit(incoming: IncomingRequest, body: ResponseRequest) -> Job:
    """Admit a request of OpenAI's Responses API. Raises: Problem."""
    conversation = body.conversation()
    model = await _model(incoming.call, body)
    request = to_image_request(body, conversation.prompt, model)
    with renaming(names_in(INPUT)):
        options = await input_images(incoming.call, request, conversation.images)
        warnings = [*conversation.warnings, *ignored_fields(body)]
        if model != (body.tool().model or model):
            message = f"there is no such model; the request's own, {model!r}, is used"
            warnings.append(FieldWarning(field="tools.model", message=message))
        return await admit_images(incoming, options, warnings)


async def _model(call: Call, body: ResponseRequest) -> str | None:
    """Return the tool's model, or the request's if only that is served.

    Clients name OpenAI's image model in the tool.
    """
    chosen = body.tool().model or body.model
    if body.model is None or chosen == body.model:
        return chosen
    served = await call.front.models.all()
    names = [call.front.models.name_of(name) for name in (chosen, body.model) if name]
    is_fallback = names[0] not in served and names[-1] in served
    return body.model if is_fallback else chosen


async def _answer(call: Call, job: Job) -> Response:
    hold = call.front.bodies.hold(call.client)
    files = await read_output_files(call.front, job, hold)
    hold.add(size := sum(map(len, files)))  # for the base64 copies
    content = await in_thread_if_large(lambda: to_response(job, files).model_dump_json(), size)
    return HeldResponse(content.encode(), hold, headers=headers_of(job), media_type=JSON)


ENDPOINT = CompatibleEndpoint(
    router, bodies=(ResponseRequest, ResponseView), error_forms={PATH: openai_error}
)
