"""/v1/jobs: get, list, download, cancel, delete."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.jobs.model.job import WIRE_VERSION, Output
from service.jobs.queue import Queue
from service.jobs.redis import keys
from service.jobs.storage.object_store import Store
from tests.service.standin import MODEL, SPEC, StandIn, picture

CAT = {"prompt": "a cat", "model": MODEL}
WAIT = {"Prefer": "wait"}


async def make(http: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    """Run a job to its end."""
    job: dict[str, Any] = (await http.post("/v1/generate", json=CAT | body, headers=WAIT)).json()
    assert job["state"] == "succeeded"
    return job


async def test_read_a_job(http: httpx.AsyncClient, pool: StandIn) -> None:
    job = await make(http)
    assert (await http.get(f"/v1/jobs/{job['id']}")).json() == job


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/jobs"),
        ("GET", "/v1/jobs/{}"),
        ("GET", "/v1/jobs/{}/events"),
        ("GET", "/v1/jobs/{}/outputs/0"),
        ("POST", "/v1/jobs/{}/cancel"),
        ("DELETE", "/v1/jobs/{}"),
    ],
)
async def test_a_job_of_a_newer_version_is_another_front_ends(
    http: httpx.AsyncClient, queue: Queue, method: str, path: str
) -> None:
    await queue.register("cold", SPEC, ready=False)
    job = (await http.post("/v1/generate", json=CAT)).json()["id"]
    await queue.redis.hset(keys.job(job), "version", WIRE_VERSION + 1)
    answer = await http.request(method, path.format(job))
    assert answer.status_code == 503 and int(answer.headers["retry-after"]) > 0
    assert answer.json()["error"]["code"] == "newer_version"
    assert await queue.redis.hget(keys.job(job), "state") == "queued"


async def test_queued_job_reports_its_position(http: httpx.AsyncClient, queue: Queue) -> None:
    await queue.register("cold", SPEC, ready=False)
    jobs = [(await http.post("/v1/generate", json=CAT)).json() for _ in range(3)]
    places = [(await http.get(f"/v1/jobs/{job['id']}")).json()["queue"] for job in jobs]
    assert [place["position"] for place in places] == [0, 1, 2]


async def test_job_pages_are_newest_first(http: httpx.AsyncClient, pool: StandIn) -> None:
    made = [(await make(http))["id"] for _ in range(5)]
    first = (await http.get("/v1/jobs", params={"limit": 2})).json()
    assert [job["id"] for job in first["data"]] == made[:2:-1] and first["has_more"]
    rest = (await http.get("/v1/jobs", params={"limit": 3, "after": made[3]})).json()
    assert [job["id"] for job in rest["data"]] == made[2::-1] and not rest["has_more"]


async def test_jobs_can_be_listed_by_state(http: httpx.AsyncClient, queue: Queue) -> None:
    await queue.register("cold", SPEC, ready=False)
    jobs = [(await http.post("/v1/generate", json=CAT)).json()["id"] for _ in range(2)]
    await http.post(f"/v1/jobs/{jobs[0]}/cancel")
    canceled = (await http.get("/v1/jobs", params={"state": "canceled"})).json()["data"]
    queued = (await http.get("/v1/jobs", params={"state": "queued"})).json()["data"]
    assert [job["id"] for job in canceled] == jobs[:1]
    assert [job["id"] for job in queued] == jobs[1:]


async def test_jobs_can_be_listed_by_model_metadata_and_time(
    http: httpx.AsyncClient, queue: Queue
) -> None:
    await queue.register("cold", SPEC, ready=False)
    jobs = [
        (await http.post("/v1/generate", json=CAT | {"metadata": metadata})).json()
        for metadata in ({}, {"shot": "a=b"}, {"shot": "c"})
    ]

    async def places(**params: str) -> list[int]:
        answer = (await http.get("/v1/jobs", params=params)).json()
        ids = [job["id"] for job in jobs]
        assert answer["next"] is None and not answer["has_more"]
        return [ids.index(job["id"]) for job in answer["data"]]

    assert await places(model=MODEL, metadata_key="shot") == [2, 1]
    assert await places(metadata_key="shot", metadata_value="a=b") == [1]
    assert await places(model="other") == []
    assert await places(created_after=jobs[2]["created_at"]) == []
    assert await places(created_before=jobs[0]["created_at"]) == []
    assert await places(created_after="2020-01-01T00:00:00+02:00") == [2, 1, 0]
    assert await places(created_before="9999-12-31T23:59:59.999999Z") == [2, 1, 0]


@pytest.mark.parametrize(
    ("params", "status", "field"),
    [
        ({"metadata_value": "c"}, 422, "metadata_value"),
        ({"created_after": "yesterday"}, 422, "created_after"),
        ({"created_after": "2026-01-31"}, 422, "created_after"),
        ({"created_before": "2026-01-31T12:00:00"}, 422, "created_before"),
        ({"created_before": "2026-13-31T12:00:00Z"}, 422, "created_before"),
        ({"limit": 0}, 422, "limit"),
        ({"limit": 1000}, 422, "limit"),
        ({"limit": "many"}, 422, "limit"),
        ({"state": "done"}, 422, "state"),
        ({"after": "job_none"}, 404, "after"),
    ],
)
async def test_invalid_page_parameters_are_named(
    http: httpx.AsyncClient, params: Any, status: int, field: str
) -> None:
    answer = await http.get("/v1/jobs", params=params)
    assert answer.status_code == status
    assert [error["field"] for error in answer.json()["errors"]] == [field]


async def test_canceling_stops_a_job_and_can_be_repeated(
    http: httpx.AsyncClient, queue: Queue
) -> None:
    await queue.register("cold", SPEC, ready=False)
    job_id = (await http.post("/v1/generate", json=CAT)).json()["id"]
    for _ in range(2):
        answer = await http.post(f"/v1/jobs/{job_id}/cancel")
        assert answer.status_code == 200 and answer.json()["state"] == "canceled"


async def test_deleting_takes_the_outputs_along(
    http: httpx.AsyncClient, pool: StandIn, store: Store, queue: Queue
) -> None:
    job = await make(http)
    stored = await queue.get(job["id"])
    assert stored is not None and await store.exists(stored.outputs[0].key)
    assert (await http.delete(f"/v1/jobs/{job['id']}")).status_code == 204
    assert not await store.exists(stored.outputs[0].key)
    for call in (http.get, http.delete):
        assert (await call(f"/v1/jobs/{job['id']}")).status_code == 404
    assert (await http.get(job["outputs"][0]["url"])).status_code == 404


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/jobs/job_none"),
        ("DELETE", "/v1/jobs/job_none"),
        ("POST", "/v1/jobs/job_none/cancel"),
        ("GET", "/v1/jobs/job_none/outputs/0"),
        ("GET", "/v1/jobs/%00%0d%0a/outputs/0"),
        ("GET", "/v1/models/none"),
    ],
)
async def test_missing_resource_is_a_problem(
    http: httpx.AsyncClient, pool: StandIn, method: str, path: str
) -> None:
    answer = await http.request(method, path)
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"


async def test_an_output_is_served_with_its_hash(http: httpx.AsyncClient, pool: StandIn) -> None:
    (output,) = (await make(http))["outputs"]
    answer = await http.get(output["url"])
    assert answer.content == picture() and answer.headers["content-type"] == "image/png"
    assert hashlib.sha256(answer.content).hexdigest() == output["sha256"]
    assert answer.headers["etag"] == f'"{output["sha256"]}"'
    assert "immutable" in answer.headers["cache-control"]
    again = await http.get(output["url"], headers={"If-None-Match": answer.headers["etag"]})
    assert again.status_code == 304 and again.content == b""


@pytest.mark.parametrize(
    ("wanted", "start", "end"),
    [("bytes=0-9", 0, 10), ("bytes=-4", -4, None), ("bytes=5-", 5, None)],
)
async def test_a_part_of_an_output(
    http: httpx.AsyncClient, pool: StandIn, wanted: str, start: int, end: int | None
) -> None:
    (output,) = (await make(http))["outputs"]
    answer = await http.get(output["url"], headers={"Range": wanted})
    assert answer.status_code == 206
    assert answer.content == picture()[start:end]
    assert answer.headers["content-range"].endswith(f"/{output['bytes']}")


async def test_output_range_after_the_end_is_a_problem(
    http: httpx.AsyncClient, pool: StandIn
) -> None:
    (output,) = (await make(http))["outputs"]
    answer = await http.get(output["url"], headers={"Range": "bytes=100000-"})
    assert answer.status_code == 416
    assert answer.headers["content-range"] == f"bytes */{output['bytes']}"


@pytest.mark.changes_files
async def test_missing_output(
    http: httpx.AsyncClient, pool: StandIn, store: Store, queue: Queue
) -> None:
    job = await make(http)
    assert (await http.get(f"/v1/jobs/{job['id']}/outputs/1")).status_code == 404
    assert (await http.get(f"/v1/jobs/{job['id']}/outputs/cat")).status_code == 422
    stored = await queue.get(job["id"])
    assert stored is not None
    await store.delete([stored.outputs[0].key])
    gone = await http.get(job["outputs"][0]["url"])
    assert gone.status_code == 410 and gone.json()["error"]["code"] == "output_gone"


def flip(file: Path) -> None:
    """Flip one bit of a file; its size stays."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("wanted", [{}, {"Range": "bytes=0-9"}], ids=["whole", "part"])
@pytest.mark.parametrize("damage", [flip, lambda file: file.write_bytes(b"")], ids=["bit", "size"])
@pytest.mark.changes_files
async def test_damaged_output_is_not_served(
    http: httpx.AsyncClient,
    pool: StandIn,
    store: Store,
    queue: Queue,
    damage: Callable[[Path], Any],
    wanted: dict[str, str],
) -> None:
    job = await make(http)
    (output,) = job["outputs"]
    assert (await http.get(output["url"], headers={"Range": "bytes=0-9"})).status_code == 206
    stored = await queue.get(job["id"])
    assert stored is not None
    damage(Path(store.url) / stored.outputs[0].key)
    answer = await http.get(output["url"], headers=wanted)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "output_damaged")
    assert "etag" not in answer.headers and "cache-control" not in answer.headers
    assert f"with seed {output['seed']}" in answer.json()["detail"]
    metrics = (await http.get("/metrics")).text
    assert "atelier_outputs_damaged_total 1.0" in metrics


async def test_damaged_output_is_not_sent_inline(
    http: httpx.AsyncClient, queue: Queue, store: Store
) -> None:
    async with Careless(queue, store):
        request = {"prompt": "a cat", "output": {"inline": True}}
        for_bytes = await http.post("/v1/generate", json=request, headers={"Accept": "image/png"})
        assert (for_bytes.status_code, for_bytes.json()["error"]["code"]) == (500, "output_damaged")
        job = (await http.get(for_bytes.headers["location"])).json()
        assert job["state"] == "succeeded" and job["outputs"][0]["base64"] is None


class Careless(StandIn):
    """Stand-in worker that records a wrong digest of its output."""

    async def _output(self, *args: Any, **options: Any) -> Output:
        output = await super()._output(*args, **options)
        return output.model_copy(update={"sha256": "0" * 64})
