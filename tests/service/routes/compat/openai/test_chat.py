"""Chat answers with images: by the OpenAI SDK, and as OpenRouter and Open WebUI call them."""

from __future__ import annotations

import base64
import json
from typing import Any

import httpx
import pytest
from openai import APIError, AsyncOpenAI, BadRequestError

from service.jobs.model.job import JobError
from service.responses.warning_header import NAME
from service.routes.compat.openai.conversations import EARLIER, INSTRUCTIONS
from tests.service.standin import MODEL, StandIn, picture

IMAGE = f"data:image/png;base64,{base64.b64encode(picture()).decode()}"
LARGER = f"data:image/png;base64,{base64.b64encode(picture(size=(64, 96))).decode()}"
BOTH = {"modalities": ["image", "text"]}
PATH = "/v1/chat/completions"


def user(content: Any) -> Any:
    return {"role": "user", "content": content}


async def test_the_answer_is_an_image_in_markdown(client: AsyncOpenAI, pool: StandIn) -> None:
    """Open WebUI and other chat clients send no `modalities`."""
    made = await client.chat.completions.create(model=MODEL, messages=[user("a cat")])
    (choice,) = made.choices
    assert choice.message.content == f"![image]({IMAGE})" and choice.finish_reason == "stop"
    assert made.object == "chat.completion" and made.model == MODEL
    assert made.usage is not None and made.usage.completion_tokens == 6 * 4
    assert pool.received[0].request["prompt"] == "a cat"


async def test_modalities_with_image_put_it_into_message_images(
    client: AsyncOpenAI, pool: StandIn
) -> None:
    made = await client.chat.completions.create(
        model=MODEL, messages=[user("a cat")], n=2, extra_body=BOTH | {"num_inference_steps": 7}
    )
    assert [choice.index for choice in made.choices] == [0, 1]
    for choice in made.choices:
        extra = choice.message.model_extra or {}
        assert extra["images"] == [{"type": "image_url", "image_url": {"url": IMAGE}}]
        assert choice.message.content == ""
    assert pool.received[0].request["num_inference_steps"] == 7


async def test_images_of_the_last_message_are_inputs(client: AsyncOpenAI, pool: StandIn) -> None:
    parts = [
        {"type": "image_url", "image_url": {"url": LARGER, "detail": "high"}},
        {"type": "text", "text": "make it blue"},
        {"type": "image_url", "image_url": {"url": IMAGE}},
        {"type": "text", "text": "and round"},
    ]
    messages = [
        {"role": "system", "content": "You draw."},
        user([{"type": "text", "text": "a cat"}]),
        {"role": "assistant", "content": f"![image]({IMAGE})"},
        user(parts),
    ]
    raw = await client.chat.completions.with_raw_response.create(model=MODEL, messages=messages)
    (job,) = pool.received
    assert job.request["prompt"] == "make it blue\nand round"
    assert await pool.store.get(job.request["image"]) == picture(size=(64, 96))
    assert await pool.store.get(job.request["reference_images"][0]) == picture()
    assert (job.request["width"], job.request["height"]) == (64, 96)
    assert INSTRUCTIONS in raw.headers[NAME] and EARLIER in raw.headers[NAME]


@pytest.mark.parametrize(
    "image",
    [
        {"type": "image", "source": {"type": "base64", "data": LARGER.partition(",")[2]}},
        {"type": "image", "image": LARGER},
        {"type": "image", "image_url": LARGER},
    ],
    ids=["Anthropic", "Qwen", "text"],
)
async def test_parts_of_other_apis_are_read(
    image: dict[str, Any], wire: httpx.AsyncClient, pool: StandIn
) -> None:
    body = {
        "model": MODEL,
        "messages": [{"role": "User", "content": ["a cat", image]}],
        "modalities": "Image",
        "extra_body": {"seed": 7},
        "aspect_ratio": "1:1",
        "prompt": "a dog",
        "steps": 3,
    }
    answer = await wire.post(PATH, json=body)
    request = pool.received[0].request
    assert (request["prompt"], request["seed"]) == ("a cat", 7)
    assert await pool.store.get(request["image"]) == picture(size=(64, 96))
    assert request["width"] == request["height"]
    assert answer.json()["choices"][0]["message"]["images"]
    warnings = {item["field"]: item["message"] for item in answer.json()["warnings"]}
    assert "the last user message has the prompt" in warnings["prompt"]
    assert warnings["steps"] == "has no effect; did you mean num_inference_steps?"


async def test_content_may_be_a_single_part(wire: httpx.AsyncClient, pool: StandIn) -> None:
    body = {"model": MODEL, "messages": [user({"type": "text", "text": "a cat"})]}
    assert (await wire.post(PATH, json=body)).status_code == 200
    assert pool.received[0].request["prompt"] == "a cat"


async def test_fields_for_language_models_are_warnings(client: AsyncOpenAI, pool: StandIn) -> None:
    raw = await client.chat.completions.with_raw_response.create(
        model=MODEL,
        messages=[user("a cat")],
        temperature=0.7,
        max_tokens=100,
        response_format={"type": "text"},
        user="ada",
        metadata={"chat": "1"},
        extra_body={"image_config": {"image_size": "2K"}, "chat_id": "x"},
    )
    warnings = {w["field"]: w["message"] for w in json.loads(raw.text)["warnings"]}
    names = {"temperature", "max_tokens", "response_format", "chat_id", "image_config.image_size"}
    assert warnings.keys() == names
    assert pool.received[0].metadata == {"chat": "1", "user": "ada"}


@pytest.mark.parametrize(("ratio", "size"), [("1:1", (64, 64)), ("16:9", (96, 48))])
async def test_an_aspect_ratio_selects_a_size(
    client: AsyncOpenAI, pool: StandIn, ratio: str, size: tuple[int, int]
) -> None:
    await client.chat.completions.create(
        model=MODEL,
        messages=[user("a cat")],
        extra_body={"image_config": {"aspect_ratio": ratio}},
    )
    request = pool.received[0].request
    width, height = request["width"], request["height"]
    assert abs(width / height - size[0] / size[1]) < 0.35 and width * height <= 128 * 128


async def test_a_stream_ends_with_the_image(client: AsyncOpenAI, pool: StandIn) -> None:
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=[user("a cat")],
        stream=True,
        stream_options={"include_usage": True},
        extra_body=BOTH,
    )
    chunks = [chunk async for chunk in stream]
    first, image, end, usage = chunks
    assert first.choices[0].delta.role == "assistant"
    extra = image.choices[0].delta.model_extra or {}
    assert extra["images"][0]["image_url"]["url"] == IMAGE
    assert end.choices[0].finish_reason == "stop"
    assert usage.usage is not None and usage.usage.total_tokens > 0 and not usage.choices
    assert len({chunk.id for chunk in chunks}) == 1


async def test_a_stream_of_markdown(wire: httpx.AsyncClient, pool: StandIn) -> None:
    body = {"model": MODEL, "messages": [user("a cat")], "stream": True}
    answer = await wire.post(PATH, json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    deltas = [json.loads(line)["choices"][0]["delta"] for line in lines[:-1]]
    assert deltas[1] == {"content": f"![image]({IMAGE})"}


async def test_a_failed_job_is_an_error_of_the_stream(client: AsyncOpenAI, pool: StandIn) -> None:
    pool.failure = JobError(code="internal", message="no such luck")
    stream = await client.chat.completions.create(
        model=MODEL, messages=[user("a cat")], stream=True
    )
    with pytest.raises(APIError, match="no such luck"):
        async for _ in stream:
            pass


REFUSED: list[tuple[dict[str, Any], str | None, str]] = [
    ({"messages": []}, "messages", "role user"),
    ({"messages": "a cat"}, "messages", "must be a list"),
    ({"messages": [{"role": "system", "content": "a"}]}, "messages", "role user"),
    ({"messages": [user("")]}, "messages.0.content", "must have a text"),
    ({"messages": [user(7)]}, "messages.0.content", "a text or a list of parts"),
    (
        {"messages": [user([{"type": "input_audio", "input_audio": {}}])]},
        "messages.0.content.0",
        "must be a text or an image",
    ),
    (
        {"messages": [user([{"type": "file", "file": {"file_id": "x"}}])]},
        "messages.0.content.0",
        "must be a text or an image",
    ),
    (
        {"messages": [user([{"type": "image_url", "image_url": {}}])]},
        "messages.0.content.0.image_url",
        "data URI",
    ),
    (
        {"messages": [user([{"type": "image_url", "image_url": {"url": "data:,x"}}])]},
        "messages",
        "data URI without ;base64",
    ),
    ({"messages": [user("a")], "modalities": ["audio"]}, "modalities", "audio"),
    ({"messages": [user("a")], "background": "transparent"}, "background", "transparent"),
    ({"messages": [user("a")], "size": "1x1"}, "size", "nearest"),
    ({"messages": [user("a" * 60_000)]}, "messages", "characters"),
    ({"messages": [user("a")], "image_config": {"aspect_ratio": "1"}}, None, "16:9"),
    ({"messages": [user("a")], "model": "no-such-model"}, "model", "available"),
    ({"messages": [user("a")], "n": 0}, "n", "at least 1"),
]


async def test_invalid_request_is_named(wire: httpx.AsyncClient, pool: StandIn) -> None:
    for body, param, message in REFUSED:
        answer = await wire.post(PATH, json=body)
        assert answer.status_code in (400, 404), answer.text
        error = answer.json()["error"]
        assert message in error["message"], error
        assert param is None or error["param"] == param
        assert not pool.received


async def test_the_sdk_raises_its_own_error(client: AsyncOpenAI, pool: StandIn) -> None:
    with pytest.raises(BadRequestError, match="must have a text"):
        await client.chat.completions.create(model=MODEL, messages=[user(" ")])
