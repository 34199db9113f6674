"""Responses with the tool `image_generation`, tested by the OpenAI SDK."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, BadRequestError

from service.jobs.model.job import JobError
from service.responses.warning_header import NAME
from tests.service.standin import MODEL, StandIn, picture

TOOL: Any = {"type": "image_generation"}
FILE = base64.b64encode(picture()).decode()
PATH = "/v1/responses"


async def test_the_output_is_an_image(client: AsyncOpenAI, pool: StandIn) -> None:
    made = await client.responses.create(
        model=MODEL, input="a cat", tools=[TOOL | {"size": "64x96", "output_format": "webp"}]
    )
    assert (made.status, made.error, made.model) == ("completed", None, MODEL)
    (item,) = made.output
    assert item.type == "image_generation_call" and item.status == "completed"
    assert item.result == base64.b64encode(picture("WEBP")).decode()
    assert (item.size, item.output_format) == ("64x96", "webp")
    assert made.usage is not None and made.usage.output_tokens == 4 * 6
    request = pool.received[0].request
    assert (request["prompt"], request["width"], request["height"]) == ("a cat", 64, 96)


async def test_messages_and_results_of_earlier_calls_are_inputs(
    client: AsyncOpenAI, pool: StandIn
) -> None:
    larger = base64.b64encode(picture(size=(64, 96))).decode()
    content: Any = [
        {"type": "input_text", "text": "make it blue"},
        {"type": "input_image", "image_url": f"data:image/png;base64,{larger}", "detail": "auto"},
    ]
    call: Any = {
        "type": "image_generation_call", "id": "ig_1", "status": "completed", "result": FILE,
    }  # fmt: skip
    await client.responses.create(
        model=MODEL,
        input=[{"role": "user", "content": "a cat"}, call, {"role": "user", "content": content}],
        tools=[TOOL],
    )
    (job,) = pool.received
    assert job.request["prompt"] == "make it blue"
    assert await pool.store.get(job.request["image"]) == picture(size=(64, 96))
    assert await pool.store.get(job.request["reference_images"][0]) == picture()


async def test_the_tool_s_model_has_precedence(client: AsyncOpenAI, pool: StandIn) -> None:
    made = await client.responses.create(
        model="gpt-5", input="a cat", tools=[TOOL | {"model": MODEL}]
    )
    assert made.model == MODEL


async def test_a_model_of_the_tool_that_is_not_served(
    client: AsyncOpenAI, pool: StandIn, http: httpx.AsyncClient
) -> None:
    """Clients name OpenAI's image model there."""
    tool = TOOL | {"model": "gpt-image-1"}
    made = await client.responses.with_raw_response.create(model=MODEL, input="a cat", tools=[tool])
    assert made.parse().model == MODEL
    assert "tools.model: there is no such model" in made.headers[NAME]
    body = {"model": "gpt-5", "input": "a cat", "tools": [tool]}
    answer = await http.post("/v1/responses", json=body)
    assert answer.status_code == 404 and "'gpt-image-1'" in answer.json()["error"]["message"]


@pytest.mark.parametrize("partial", [0, 2])
async def test_a_stream_has_the_documented_events(
    client: AsyncOpenAI, pool: StandIn, partial: int
) -> None:
    pool.may_finish.clear()
    stream = await client.responses.create(
        model=MODEL,
        input="a cat",
        tools=[TOOL | {"partial_images": partial}],
        stream=True,
        extra_body={"num_inference_steps": 8},
    )
    events = []
    async for event in stream:
        events.append(event)
        if len(events) == 5 + partial:  # the worker deletes its previews at the end
            pool.may_finish.set()
    call = "response.image_generation_call"
    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        f"{call}.in_progress",
        f"{call}.generating",
        *[f"{call}.partial_image"] * partial,
        f"{call}.completed",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    previews = [event for event in events if event.type == f"{call}.partial_image"]
    assert [event.partial_image_index for event in previews] == list(range(partial))
    assert all(base64.b64decode(event.partial_image_b64) for event in previews)
    last = events[-1]
    assert last.type == "response.completed" and last.response.output[0].result == FILE


async def test_the_sdk_s_stream_helper_follows_it(client: AsyncOpenAI, pool: StandIn) -> None:
    async with client.responses.stream(model=MODEL, input="a cat", tools=[TOOL]) as stream:
        response = await stream.get_final_response()
    assert response.output[0].result == FILE


async def test_a_failed_job_is_a_failed_response(client: AsyncOpenAI, pool: StandIn) -> None:
    pool.failure = JobError(code="internal", message="no such luck")
    stream = await client.responses.create(model=MODEL, input="a", tools=[TOOL], stream=True)
    events = [event async for event in stream]
    last = events[-1]
    assert last.type == "response.failed" and last.response.error is not None
    assert last.response.error.message == "no such luck"


async def test_fields_for_language_models_are_warnings(client: AsyncOpenAI, pool: StandIn) -> None:
    raw = await client.responses.with_raw_response.create(
        model=MODEL,
        input="a cat",
        tools=[TOOL, {"type": "web_search"}],
        instructions="be brief",
        temperature=1.0,
        tool_choice={"type": "image_generation"},
    )
    for name in ("tools", "instructions", "temperature", "tool_choice"):
        assert f"{name}: " in raw.headers[NAME]


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"previous_response_id": "resp_1"}, "previous_response_id", "send the conversation"),
    ({"conversation": "conv_1"}, "conversation", "not stored"),
    ({"background": True}, "background", "POST /v1/generate"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt", "templates"),
    ({"tools": []}, "tools", "image_generation"),
    ({"tools": [{"type": "web_search"}]}, "tools", "image_generation"),
    ({"tools": [TOOL | {"background": "transparent"}]}, "background", "transparent"),
    ({"tools": [TOOL | {"partial_images": 9}]}, "tools.0.partial_images", "at most 3"),
    ({"tools": [TOOL | {"input_image_mask": {}}]}, "tools.input_image_mask", "/edits"),
    ({"input": []}, "input", "role user"),
    (
        {
            "input": [
                {"role": "user", "content": "a"},
                {"type": "image_generation_call", "id": "ig_1"},
            ]
        },
        "input.1.result",
        "base64",
    ),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "x"}]}]},
        "input.0.content.0.image_url",
        "uploaded files",
    ),
    ({"input": 7}, "input", "must be"),
]


async def test_invalid_request_is_named(wire: httpx.AsyncClient, pool: StandIn) -> None:
    for body, param, message in REFUSED:
        answer = await wire.post(PATH, json={"input": "a cat", "tools": [TOOL], **body})
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert message in error["message"] and error["param"] == param, error
        assert not pool.received


async def test_the_sdk_raises_its_own_error(client: AsyncOpenAI, pool: StandIn) -> None:
    with pytest.raises(BadRequestError, match="previous_response_id"):
        await client.responses.create(
            model=MODEL, input="a", tools=[TOOL], previous_response_id="resp_1"
        )
