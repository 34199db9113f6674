"""Route of OpenAI's chat API, for clients that read images from chat answers."""

from __future__ import annotations

import json

from fastapi import APIRouter, Response

from service.http.inflight_limits import HeldResponse
from service.http.negotiation import EVENTS, JSON
from service.jobs.model.job import Job
from service.responses.json_content import in_thread_if_large
from service.responses.render import job_headers as headers_of
from service.responses.render import job_headers_on_errors
from service.routes.compat import documents
from service.routes.compat.call import ByBearer, Call, documented
from service.routes.compat.endpoint import CompatibleEndpoint
from service.routes.compat.incoming_request import IncomingRequest, receive_request
from service.routes.compat.light_bodies import without_images
from service.routes.compat.names import renaming
from service.routes.compat.openai.chat_answers import ChatCompletion, ChatEvents, to_completion
from service.routes.compat.openai.chat_requests import (
    ChatRequest,
    ignored_fields,
    names_in,
    to_image_request,
)
from service.routes.compat.openai.conversations import read_conversation
from service.routes.compat.openai.errors import ADMITTING, OpenAIError, openai_error
from service.routes.compat.openai.examples import CHUNK
from service.routes.compat.openai.image_admission import admit_images, input_images
from service.routes.compat.openai.job_stream import stream_job
from service.routes.compat.outcome import (
    json_once_ended,
    read_output_files,
    wait_for_success,
)

PATH = "/v1/chat/completions"
MESSAGES = "messages"

router = APIRouter(tags=["openai chat"], dependencies=documented("bearer"))

DOCUMENTS = documents.operation(
    {JSON: documents.schema_of(ChatRequest)},
    {
        JSON: documents.schema_of(ChatCompletion),
        EVENTS: documents.stream_of({"type": "object"}, f"data: {json.dumps(CHUNK)}\n\n"),
    },
    OpenAIError,
    fails=ADMITTING,
)


@router.post(PATH, **DOCUMENTS)
async def create_chat_completion(call: ByBearer) -> Response:
    """Generate an image from the last message of a chat, as `chat.completions.create`."""
    with call.waiting() as waiting:
        job, body = await _received(call)
        with job_headers_on_errors(job):
            if body.stream:
                options = body.stream_options
                has_usage = bool(options and options.include_usage)
                return stream_job(call, job, ChatEvents(job, body.shows_images, has_usage), waiting)

        async def build() -> Response:
            return await _answer(call, await wait_for_success(call, job), body)

        return await json_once_ended(call, job, waiting, build)


async def _received(call: Call) -> tuple[Job, ChatRequest]:
    """Admit a request; return its job, and its body without images. Raises: Problem."""
    async with receive_request(call) as incoming:
        body = await incoming.json(ChatRequest)
        return await _admit(incoming, body), without_images(body)


async def _admit(incoming: IncomingRequest, body: ChatRequest) -> Job:
    """Admit an image request from a chat. Raises: Problem."""
    front = incoming.call.front
    conversation = read_conversation(body.messages, MESSAGES)
    spec = (await front.models.get(body.model)).spec
    with renaming(names_in(MESSAGES)):
        request = to_image_request(body, conversation.prompt, spec, front.settings.limits)
        options = await input_images(incoming.call, request, conversation.images)
        warnings = [*conversation.warnings, *ignored_fields(body)]
        return await admit_images(incoming, options, warnings)


async def _answer(call: Call, job: Job, body: ChatRequest) -> Response:
    hold = call.front.bodies.hold(call.client)
    files = await read_output_files(call.front, job, hold)
    hold.add(size := sum(map(len, files)))  # for the base64 copies

    def serialize() -> str:
        view = to_completion(job, files, shows_images=body.shows_images)
        return view.model_dump_json(exclude_none=True)

    content = await in_thread_if_large(serialize, size)
    return HeldResponse(content.encode(), hold, headers=headers_of(job), media_type=JSON)


ENDPOINT = CompatibleEndpoint(
    router, bodies=(ChatRequest, ChatCompletion), error_forms={PATH: openai_error}
)
