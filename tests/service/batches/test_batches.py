"""Batches through the unmodified OpenAI SDK: files, results, errors, cancellation, limits."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI
from openai.types import Batch

from service.app import create_app
from service.auth.api_keys import ApiKeys, id_of
from service.jobs.batches import ForgetBatches
from service.jobs.model.job import Job, JobError, JobState
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.settings.batches import BatchSettings
from service.settings.redis import RedisSettings
from service.settings.server import ServerSettings
from service.settings.settings import Settings
from service.settings.tenants import TenantSettings
from tests.service.conftest import served
from tests.service.eventually import eventually
from tests.service.openai_clients import openai_client
from tests.service.standin import MODEL, StandIn

URL = "/v1/generate"
IMAGES_URL = "/v1/images/generations"
SMALL_BYTES = 20_000


@pytest.fixture
def settings(tmp_path: Path, redis_url: str) -> Settings:
    return Settings(
        state_dir=tmp_path,
        redis=RedisSettings(url=redis_url),
        server=ServerSettings(models_age_s=0, keys=True, keys_age_s=0),
        batches=BatchSettings(poll_every_s=0.05, window=2, max_open=3, max_files=12),
        tenants={
            "narrow": TenantSettings(max_queued=1),
            "small": TenantSettings(stored_bytes=SMALL_BYTES),
        },
    )


async def client_of(tenant: str, queue: Queue, address: str) -> AsyncOpenAI:
    key = await ApiKeys(queue.redis).create(tenant)
    return openai_client(address, key[1])


@pytest.fixture
async def address(settings: Settings, queue: Queue, store: Store) -> AsyncIterator[str]:
    async with served(create_app(settings, queue, store), settings) as address:
        yield address


@pytest.fixture
async def client(address: str, queue: Queue) -> AsyncIterator[AsyncOpenAI]:
    async with await client_of("acme", queue, address) as client:
        yield client


def line(number: int, **body: Any) -> dict[str, Any]:
    body = {"prompt": f"cat {number}", "model": MODEL, "seed": number, **body}
    return {"custom_id": f"cat-{number}", "method": "POST", "url": URL, "body": body}


def jsonl(*lines: Any) -> bytes:
    return b"".join(json.dumps(item).encode() + b"\n" for item in lines)


async def begin(client: AsyncOpenAI, *lines: Any, **more: Any) -> Batch:
    file = await client.files.create(file=("cats.jsonl", jsonl(*lines)), purpose="batch")
    return await client.batches.create(
        input_file_id=file.id, endpoint=URL, completion_window="24h", **more
    )


async def begin_with(client: AsyncOpenAI, file_id: str) -> Batch:
    return await client.batches.create(input_file_id=file_id, endpoint=URL, completion_window="24h")


async def reached(client: AsyncOpenAI, batch: Batch, *states: str) -> Batch:
    async def is_there() -> bool:
        nonlocal batch
        batch = await client.batches.retrieve(batch.id)
        return batch.status in states

    await eventually(is_there)
    return batch


async def results(client: AsyncOpenAI, file_id: str | None) -> dict[str, Any]:
    assert file_id
    text = (await client.files.content(file_id)).text
    return {record["custom_id"]: record for record in map(json.loads, text.splitlines())}


async def test_each_line_becomes_one_job_of_low_priority_and_one_result(
    client: AsyncOpenAI, pool: StandIn
) -> None:
    lines = [line(number) for number in range(5)]
    named = {"X-Request-Id": "mine"}
    batch = await begin(client, *lines, metadata={"of": "us"}, extra_headers=named)
    assert (batch.object, batch.status, batch.endpoint) == ("batch", "validating", URL)
    assert batch.metadata == {"of": "us"}
    batch = await reached(client, batch, "completed")
    assert batch.request_counts and batch.request_counts.model_dump() == {
        "total": 5, "completed": 5, "failed": 0,
    }  # fmt: skip
    assert batch.error_file_id is None
    records = await results(client, batch.output_file_id)
    assert list(records) == [entry["custom_id"] for entry in lines]
    for number in range(5):
        response = records[f"cat-{number}"]["response"]
        assert (response["status_code"], response["body"]["state"]) == (200, "succeeded")
        assert response["body"]["request"]["seed"] == number
        assert response["body"]["outputs"][0]["url"]
    assert sorted(job.request["seed"] for job in pool.received) == [0, 1, 2, 3, 4]
    assert {(job.priority, job.tenant) for job in pool.received} == {(0, "acme")}
    ((key_id, request_id),) = {(job.key_id, job.request_id) for job in pool.received}
    assert (key_id, request_id) == (id_of(client.api_key), "mine")
    names = [file.filename async for file in await client.files.list(purpose="batch")]
    assert names == ["cats.jsonl"]


async def test_a_line_that_fails_is_in_the_errors_file(client: AsyncOpenAI, pool: StandIn) -> None:
    batch = await begin(client, line(0), line(1, width=10))
    batch = await reached(client, batch, "completed")
    assert batch.request_counts and batch.request_counts.failed == 1
    assert list(await results(client, batch.output_file_id)) == ["cat-0"]
    (wrong,) = (await results(client, batch.error_file_id)).values()
    assert wrong["custom_id"] == "cat-1" and wrong["response"]["status_code"] == 422
    assert wrong["response"]["body"]["error"]["param"] == "width"


async def test_a_failed_job_is_a_failed_line(client: AsyncOpenAI, pool: StandIn) -> None:
    pool.failure = JobError(code="refused_by_safety", message="it shows a secret")
    batch = await reached(client, await begin(client, line(0)), "completed")
    assert batch.output_file_id is None
    (wrong,) = (await results(client, batch.error_file_id)).values()
    assert wrong["response"]["status_code"] == 422


@pytest.mark.parametrize(
    ("bad", "code", "param"),
    [
        (b"{", "invalid_json_line", None),
        (b"[" * 100_000, "invalid_json_line", None),
        (b"[1]", "invalid_json_line", None),
        (b'{"custom_id": "a", "custom_id": "b"}', "invalid_json_line", None),
        (b'{"body": [' + b"1," * 40_000 + b"1]}", "invalid_json_line", None),
        (jsonl(line(1) | {"url": "/v1/other"}), "mismatched_endpoint", "url"),
        (jsonl(line(1) | {"custom_id": "cat-0"}), "duplicate_custom_id", "custom_id"),
        (jsonl(line(1) | {"method": "GET"}), "invalid_request", "method"),
        (jsonl(line(1, steps=3)), "invalid_request", "steps"),
        (jsonl(line(1, model="no-such-model")), "model_not_found", "model"),
        (jsonl(line(1, output={"inline": True})), "invalid_request", "output.inline"),
    ],
)
async def test_invalid_line_fails_the_batch_before_any_job_is_created(
    client: AsyncOpenAI, pool: StandIn, bad: bytes, code: str, param: str | None
) -> None:
    content = jsonl(line(0)) + b"\n" + bad
    file = await client.files.create(file=content, purpose="batch")
    batch = await client.batches.create(
        input_file_id=file.id, endpoint=URL, completion_window="24h"
    )
    batch = await reached(client, batch, "failed")
    assert batch.errors and batch.errors.data
    (error,) = batch.errors.data
    assert (error.code, error.line, error.param) == (code, 3, param)
    assert error.message
    assert pool.received == []


async def test_canceled_batch_keeps_finished_lines(
    client: AsyncOpenAI, pool: StandIn, queue: Queue
) -> None:
    batch = await begin(client, *(line(number) for number in range(4)))

    async def has_one() -> bool:
        current = await client.batches.retrieve(batch.id)
        if len(pool.received) > 1:  # so the first has ended
            pool.may_finish.clear()
        return bool(current.request_counts and current.request_counts.completed)

    await eventually(has_one)
    ended = await client.batches.cancel(batch.id)
    assert ended.status in ("cancelling", "cancelled", "completed")
    pool.may_finish.set()
    ended = await reached(client, batch, "cancelled", "completed")
    counts = ended.request_counts
    assert counts and counts.total == 4 and counts.completed + counts.failed == 4
    done = await results(client, ended.output_file_id)
    rest = await results(client, ended.error_file_id) if ended.error_file_id else {}
    assert {*done} | {*rest} == {f"cat-{number}" for number in range(4)}
    assert len(done) == counts.completed and not {*done} & {*rest}
    jobs = await queue.list(tenant="acme", limit=10)
    assert all(job.state.ended for job in jobs)


async def test_a_window_bounds_the_jobs_of_a_batch_and_the_quota_is_kept(
    address: str, pool: StandIn, queue: Queue
) -> None:
    """The tenant may have one queued job, but no line is rejected for that."""
    async with await client_of("narrow", queue, address) as client:
        pool.may_finish.clear()
        batch = await begin(client, *(line(number) for number in range(4)))
        await asyncio.wait_for(pool.has_claimed.wait(), 30)
        assert len(await queue.list(tenant="narrow", limit=10)) == 1
        pool.may_finish.set()
        batch = await reached(client, batch, "completed")
        assert batch.request_counts and batch.request_counts.completed == 4


async def test_batches_and_files_are_private_to_the_tenant(
    client: AsyncOpenAI, address: str, queue: Queue, pool: StandIn
) -> None:
    batch = await reached(client, await begin(client, line(0)), "completed")
    assert batch.output_file_id
    async with await client_of("other", queue, address) as other:
        for call in (
            other.batches.retrieve(batch.id),
            other.batches.cancel(batch.id),
            other.files.retrieve(batch.input_file_id),
            other.files.content(batch.output_file_id),
            other.files.delete(batch.input_file_id),
        ):
            with pytest.raises(openai.NotFoundError):
                await call
        with pytest.raises(openai.NotFoundError, match="no such file"):
            await other.batches.create(
                input_file_id=batch.input_file_id, endpoint=URL, completion_window="24h"
            )
        assert [item async for item in await other.batches.list()] == []
        assert [item async for item in await other.files.list()] == []


async def test_a_file_is_deleted_once_no_batch_reads_it(client: AsyncOpenAI, pool: StandIn) -> None:
    pool.may_finish.clear()
    batch = await begin(client, line(0))
    with pytest.raises(openai.ConflictError, match="reads this file"):
        await client.files.delete(batch.input_file_id)
    pool.may_finish.set()
    await reached(client, batch, "completed")
    assert (await client.files.delete(batch.input_file_id)).deleted
    with pytest.raises(openai.NotFoundError):
        await client.files.retrieve(batch.input_file_id)


async def test_a_front_end_that_stops_while_it_takes_a_batch_releases_it(
    settings: Settings, queue: Queue, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease would otherwise keep other front ends away."""
    app, take, is_taken = create_app(settings, queue, store), queue.take_batch, asyncio.Event()

    async def take_slowly(holder: str, lease_s: float) -> object:
        taken = await take(holder, lease_s)
        if taken:
            is_taken.set()
            await asyncio.sleep(0.1)
        return taken

    monkeypatch.setattr(queue, "take_batch", take_slowly)
    _, key = await ApiKeys(queue.redis).create("acme")
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as http,
    ):
        http.headers["Authorization"] = f"Bearer {key}"
        form = {"file": ("cats.jsonl", jsonl(line(0)))}
        file = (await http.post("/v1/files", data={"purpose": "batch"}, files=form)).json()
        batch = {"input_file_id": file["id"], "endpoint": URL, "completion_window": "24h"}
        assert (await http.post("/v1/batches", json=batch)).is_success
        await is_taken.wait()
    assert await take("another", 60)


async def test_batches_are_listed_newest_first_by_pages(client: AsyncOpenAI, pool: StandIn) -> None:
    made = [(await begin(client, line(number))).id for number in range(3)]
    listed = [item.id async for item in await client.batches.list(limit=1)]
    assert listed == made[::-1]
    files = [item.id async for item in await client.files.list(limit=1, purpose="batch")]
    assert len({*files}) == len(files) == 3


async def test_page_after_a_missing_item_is_not_found(client: AsyncOpenAI) -> None:
    """Otherwise a client whose last item was deleted would start again, and never end."""
    for listing in (client.batches.list, client.files.list):
        with pytest.raises(openai.NotFoundError) as error:
            await listing(after="gone_0")
        assert error.value.param == "after"


async def test_exceeded_limits_return_conflicts(client: AsyncOpenAI) -> None:
    made = [await begin(client, line(number)) for number in range(3)]
    with pytest.raises(openai.ConflictError, match="3 batches"):
        await begin(client, line(3))
    for _ in range(2):  # four, and two for each batch
        await client.files.create(file=b"{}", purpose="batch")
    with pytest.raises(openai.ConflictError, match="12 files"):
        await client.files.create(file=b"{}", purpose="batch")
    with pytest.raises(openai.BadRequestError, match="purpose"):
        await client.files.create(file=b"{}", purpose="vision")
    file_id = made[0].input_file_id
    for endpoint, window, message in ((URL, "1 day", "hours"), ("/v1/x", "24h", "/v1/generate")):
        with pytest.raises(openai.BadRequestError, match=message):
            await client.batches.create(
                input_file_id=file_id, endpoint=endpoint, completion_window=window,
            )  # fmt: skip


async def test_batch_reserves_files_for_its_results(client: AsyncOpenAI, pool: StandIn) -> None:
    files = [await client.files.create(file=jsonl(line(0)), purpose="batch") for _ in range(11)]
    with pytest.raises(openai.ConflictError, match="12 files"):
        await begin_with(client, files[0].id)
    await client.files.delete(files[-1].id)
    batch = await begin_with(client, files[0].id)
    await reached(client, batch, "completed")
    assert len([file async for file in await client.files.list()]) == 11


async def test_files_and_results_are_of_the_stored_bytes(
    address: str, queue: Queue, store: Store, pool: StandIn
) -> None:
    async with await client_of("small", queue, address) as client:
        batch = await reached(client, await begin(client, line(0)), "completed")
        assert batch.output_file_id
        uploaded = await client.files.retrieve(batch.input_file_id)
        made = await client.files.retrieve(batch.output_file_id)
        (job,) = pool.received
        images = sum(output.bytes for output in (await stored_job(queue, job)).outputs)
        limits = TenantSettings(stored_bytes=SMALL_BYTES)
        used = (await queue.quota_usage("small", limits)).stored_bytes
        assert used == uploaded.bytes + made.bytes + images
        with pytest.raises(openai.RateLimitError, match="stored bytes") as refused:
            await client.files.create(file=b" " * (SMALL_BYTES - used + 1), purpose="batch")
        assert refused.value.code == "quota_exceeded"
        rest = await client.files.create(file=b" " * (SMALL_BYTES - used), purpose="batch")
        for file in (uploaded, made, rest):
            await client.files.delete(file.id)
        assert (await queue.quota_usage("small", limits)).stored_bytes == images


async def test_a_result_beyond_the_quota_fails_its_line(
    address: str, queue: Queue, pool: StandIn
) -> None:
    """The accepted job keeps its outputs."""
    async with await client_of("small", queue, address) as client:
        pool.may_finish.clear()
        batch = await begin(client, line(0))
        await asyncio.wait_for(pool.has_claimed.wait(), 30)
        limits = TenantSettings(stored_bytes=SMALL_BYTES)
        used = (await queue.quota_usage("small", limits)).stored_bytes
        await client.files.create(file=b" " * (SMALL_BYTES - used), purpose="batch")
        pool.may_finish.set()
        batch = await reached(client, batch, "completed")
        (wrong,) = (await results(client, batch.error_file_id)).values()
        assert wrong["response"]["body"]["error"]["code"] == "results_too_large"
        assert (await stored_job(queue, pool.received[0])).state is JobState.SUCCEEDED


async def stored_job(queue: Queue, job: Job) -> Job:
    current = await queue.get(job.id)
    assert current
    return current


async def test_ended_batch_is_deleted_after_retention(
    client: AsyncOpenAI, queue: Queue, pool: StandIn
) -> None:
    batch = await reached(client, await begin(client, line(0)), "completed")
    await queue.run(ForgetBatches(0))
    with pytest.raises(openai.NotFoundError):
        await client.batches.retrieve(batch.id)
    jobs = await queue.list(tenant="acme", limit=10)
    assert [job.state for job in jobs] == [JobState.SUCCEEDED]


async def test_openai_image_requests_in_a_batch(client: AsyncOpenAI, pool: StandIn) -> None:
    url = "/v1/images/generations"

    def requested(number: int, **more: Any) -> dict[str, Any]:
        body = {"model": MODEL, "prompt": "a cat", "n": 2, "seed": number, **more}
        return {"custom_id": f"cat-{number}", "method": "POST", "url": url, "body": body}

    lines = (
        requested(0, style="vivid"),
        requested(1, response_format="url"),
        requested(2, background="transparent"),
    )
    file = await client.files.create(file=jsonl(*lines), purpose="batch")
    batch = await client.batches.create(
        input_file_id=file.id, endpoint=url, completion_window="24h"
    )
    batch = await reached(client, batch, "completed")
    records = await results(client, batch.output_file_id)
    first, second = (records[f"cat-{number}"]["response"]["body"]["data"] for number in (0, 1))
    assert len(first) == len(second) == 2
    assert base64.b64decode(first[0]["b64_json"]).startswith(b"\x89PNG")
    assert second[1]["url"].startswith("/links/")
    (wrong,) = (await results(client, batch.error_file_id)).values()
    assert wrong["response"]["status_code"] == 400
    assert wrong["response"]["body"]["error"]["param"] == "background"
    (warning,) = records["cat-0"]["response"]["body"]["warnings"]
    assert warning["field"] == "style"


async def test_invalid_file_id_is_rejected(client: AsyncOpenAI, address: str) -> None:
    body = rb'{"input_file_id": "\ud800", "endpoint": "/v1/generate", "completion_window": "24h"}'
    headers = {"Authorization": f"Bearer {client.api_key}", "Content-Type": "application/json"}
    async with httpx.AsyncClient(base_url=address, headers=headers, trust_env=False) as http:
        answer = await http.post("/v1/batches", content=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input_file_id")


async def test_batch_creation_is_idempotent(
    client: AsyncOpenAI, pool: StandIn, address: str, queue: Queue
) -> None:
    by_key = {"Idempotency-Key": "tonight"}
    file = await client.files.create(file=jsonl(line(0)), purpose="batch")
    fields = {"input_file_id": file.id, "endpoint": URL, "extra_headers": by_key}
    batch = await client.batches.create(**fields, completion_window="24h")
    await reached(client, batch, "completed")
    await client.files.delete(file.id)
    again = await client.batches.create(**fields, completion_window="24h")
    assert (again.id, again.status) == (batch.id, "completed") and len(pool.received) == 1
    with pytest.raises(openai.ConflictError, match="another body"):
        await client.batches.create(**fields, completion_window="24h", metadata={"of": "us"})
    async with await client_of("other", queue, address) as other:
        file = await other.files.create(file=jsonl(line(0)), purpose="batch")
        foreign = await other.batches.create(
            input_file_id=file.id, endpoint=URL, completion_window="24h", extra_headers=by_key
        )
        assert foreign.id != batch.id


def image_line(number: int, **body: Any) -> dict[str, Any]:
    return line(number, **body) | {"url": IMAGES_URL}


async def images_of(client: AsyncOpenAI, *lines: dict[str, Any]) -> Batch:
    """Create a batch of lines for images."""
    file = await client.files.create(file=jsonl(*lines), purpose="batch")
    return await client.batches.create(
        input_file_id=file.id, endpoint=IMAGES_URL, completion_window="24h"
    )


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({"size": "65x65"}, "size", "the nearest is 64x64"),
        ({"n": 5}, "n", "4 at most"),
        ({"size": "64x64", "width": 32}, "width", "is also given as size"),
        ({"output_format": "png", "output": {"format": "webp"}}, "output.format", "output_format"),
    ],
)
async def test_invalid_image_line_has_the_endpoint_error(
    client: AsyncOpenAI, pool: StandIn, body: dict[str, Any], param: str, said: str
) -> None:
    batch = await reached(client, await images_of(client, image_line(0, **body)), "completed")
    (wrong,) = (await results(client, batch.error_file_id)).values()
    assert wrong["response"]["status_code"] == 400
    error = wrong["response"]["body"]["error"]
    assert error["param"] == param and said in error["message"]


async def test_refused_pixels_are_a_violation_of_the_content_policy(
    client: AsyncOpenAI, pool: StandIn
) -> None:
    pool.failure = JobError(code="refused_by_safety", message="it shows a secret")
    batch = await reached(client, await images_of(client, image_line(0)), "completed")
    (wrong,) = (await results(client, batch.error_file_id)).values()
    assert wrong["response"]["status_code"] == 400
    assert wrong["response"]["body"]["error"]["code"] == "content_policy_violation"


async def test_a_further_field_of_an_image_is_checked_before_any_job_is_made(
    client: AsyncOpenAI, pool: StandIn
) -> None:
    lines = image_line(0), image_line(1, steps=3)
    batch = await reached(client, await images_of(client, *lines), "failed")
    assert batch.errors and batch.errors.data
    assert [(error.line, error.param) for error in batch.errors.data] == [(2, "steps")]
    assert not pool.received
