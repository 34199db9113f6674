"""Front ends and pools of this version and the last release process the same jobs."""

from __future__ import annotations

import base64
import io
import json
import re
import signal
from typing import Any

import httpx
import pytest
from PIL import Image

from service.client import parse_events
from service.jobs.redis import keys
from tests.e2e.system import until
from tests.skew.installation import MODEL, Installation, Version


def _drawing() -> str:
    file = io.BytesIO()
    Image.linear_gradient("L").resize((32, 32)).convert("RGB").save(file, "png")
    return base64.b64encode(file.getvalue()).decode()


BODY: dict[str, Any] = {"model": MODEL, "prompt": "a red circle", "seed": 7}
REQUESTS: dict[str, dict[str, Any]] = {
    "image": BODY,
    "several": BODY | {"num_images": 3, "num_inference_steps": 6},
    "from an image": BODY | {"image": _drawing(), "strength": 0.8},
    "hires": BODY | {"hires": {"scale": 1.5, "upscaler": "latent", "strength": 0.5}},
}
REDRAWN: frozenset[str] = frozenset()
"""Requests whose output differs from the last release, according to the changelog."""
LONG = BODY | {"num_images": 4, "num_inference_steps": 1000}
"""Long enough to interrupt midway, and to outlast a drain."""
pytestmark = pytest.mark.timeout(900)  # seconds; pools of two versions start in sequence
RESUMED = re.compile(
    r"image \d of (\w+) "
    r"(?:(?:goes on|resumes) after step|(?:begins anew|starts over): version is)"
)
"""Log of a pool that resumes a snapshot, or restarts for a snapshot of another format."""


@pytest.fixture(params=[False, True], ids=["upgraded", "rolled back"])
def from_to(request: pytest.FixtureRequest, old: Version, new: Version) -> tuple[Version, Version]:
    """The versions before and after a change."""
    return (new, old) if request.param else (old, new)


def pixels(job: dict[str, Any]) -> list[str]:
    assert job["state"] == "succeeded", job
    return [output["pixels_sha256"] for output in job["outputs"]]


def submit(http: httpx.Client, body: dict[str, Any], **headers: str) -> str:
    response = http.post("/v1/generate", json=body, headers=headers)
    assert response.status_code == 202, response.text
    return str(response.json()["id"])


def submit_too_late(http: httpx.Client) -> str:
    """Submit a job of an unmeasured size with the shortest accepted deadline, while no pool
    runs."""
    for deadline_s in (1, 2, 4, 8, 16, 32, 64, 128):
        body = BODY | {"width": 48, "deadline_s": deadline_s}
        if (response := http.post("/v1/generate", json=body)).status_code == 202:
            break
    return str(response.raise_for_status().json()["id"])


def look(http: httpx.Client, job_id: str) -> dict[str, Any]:
    job: dict[str, Any] = http.get(f"/v1/jobs/{job_id}").raise_for_status().json()
    return job


def events(http: httpx.Client, job_id: str) -> list[tuple[str, str]]:
    """Ids and names of a job's events, after its end."""
    path, headers = f"/v1/jobs/{job_id}/events", {"Accept": "text/event-stream"}
    with http.stream("GET", path, headers=headers) as response:
        return [(event.id, event.name) for event in parse_events(response.iter_lines())]


def ended(http: httpx.Client, job_id: str) -> dict[str, Any]:
    """The job once its event stream has ended."""
    events(http, job_id)
    return look(http, job_id)


def ledger_jobs(installation: Installation) -> int:
    """Number of jobs in the ledger."""
    totals = installation.redis.hgetall(keys.PREFIX + "totals")
    return sum(int(count) for name, count in totals.items() if json.loads(name)[0] == "jobs")


def test_the_same_request_has_the_same_pixels(
    installation: Installation, key: str, old: Version, new: Version
) -> None:
    drawn: dict[str, dict[tuple[str, str], list[str]]] = {name: {} for name in REQUESTS}
    for pool in (old, new):
        installation.serve_by(pool)
        before = ledger_jobs(installation)
        for front in (old, new):
            http = installation.http(front, key)
            for name, body in REQUESTS.items():
                job = ended(http, submit(http, body))
                drawn[name][front.name, pool.name] = pixels(job)
    assert ledger_jobs(installation) - before == 2 * len(REQUESTS)
    for name, by_versions in drawn.items():
        assert len({*map(tuple, by_versions.values())}) == (2 if name in REDRAWN else 1), (
            by_versions
        )
        assert by_versions[old.name, new.name] == by_versions[new.name, new.name]


def test_queued_and_running_jobs_continue_with_the_other_version(
    installation: Installation, key: str, from_to: tuple[Version, Version], new: Version
) -> None:
    before, after = from_to
    own_front, other_front = (installation.http(version, key) for version in from_to)
    installation.serve_by(before)
    running = submit(own_front, LONG)
    until(lambda: installation.redis.hget(keys.job(running), "snapshots"), "a snapshot")
    queued = [submit(http, BODY | {"deadline_s": 600}) for http in (own_front, other_front)]
    # A rollback replaces a failing pool, which does not drain.
    installation.end_pool(signal.SIGTERM if after is new else signal.SIGKILL)
    assert ended(own_front, submit_too_late(other_front))["state"] == "expired"

    pool = installation.serve_by(after)
    job = ended(other_front, running)
    assert {*RESUMED.findall(pool.said)} == {running}
    assert [
        ended(http, job_id)["state"] for http in (own_front, other_front) for job_id in queued
    ] == ["succeeded"] * 4
    assert pixels(job) == pixels(ended(own_front, submit(own_front, LONG)))
    own_events = events(own_front, running)
    assert own_events == events(other_front, running)
    assert [name for _, name in own_events].count("running") == 2


def test_either_front_end_reads_jobs_of_the_other(
    installation: Installation, key: str, from_to: tuple[Version, Version], new: Version
) -> None:
    own_front, other_front = (installation.http(version, key) for version in from_to)
    installation.serve_by(new)
    running = submit(own_front, LONG)
    until(lambda: look(other_front, running)["progress"]["step"], "a step")
    assert other_front.post(f"/v1/jobs/{running}/cancel").is_success
    assert look(own_front, running)["state"] == "canceled"

    idempotency = {"Idempotency-Key": f"of {own_front.base_url}"}
    first = submit(own_front, BODY, **idempotency)
    assert submit(other_front, BODY, **idempotency) == first
    assert other_front.post("/v1/generate", json=LONG, headers=idempotency).status_code == 409

    image = {"model": MODEL, "prompt": "a star", "response_format": "url"}
    created = own_front.post("/v1/images/generations", json=image).raise_for_status().json()
    link = httpx.URL(created["data"][0]["url"]).raw_path.decode()
    assert other_front.get(link).content == own_front.get(link).content != b""

    line = {"custom_id": "a", "method": "POST", "url": "/v1/images/generations", "body": image}
    file = own_front.post(
        "/v1/files", files={"file": ("a.jsonl", json.dumps(line))}, data={"purpose": "batch"}
    )
    batch = {"input_file_id": file.json()["id"], "endpoint": line["url"]}
    sent = other_front.post("/v1/batches", json=batch | {"completion_window": "24h"}).json()["id"]

    def batch_now() -> dict[str, Any]:
        batch_view: dict[str, Any] = own_front.get(f"/v1/batches/{sent}").json()
        return batch_view

    until(lambda: batch_now()["status"] == "completed", "the end of a batch")
    assert batch_now()["request_counts"] == {"total": 1, "completed": 1, "failed": 0}


def test_an_operators_key_acts_for_no_tenant(
    installation: Installation, operators_key: str, old: Version, new: Version
) -> None:
    for front in (old, new):
        response = installation.http(front, operators_key).post("/v1/generate", json=BODY)
        assert response.status_code in (401, 403), response.text
