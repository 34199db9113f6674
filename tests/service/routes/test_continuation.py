"""POST /v1/jobs/{id}/continue: chosen drafts, changed fields, and errors."""

from __future__ import annotations

import base64
import hashlib
import json
from datetime import datetime
from typing import Any

import httpx
import pytest

from models.spec.model_spec import ModelSpec
from service.jobs.model.job import Job, Output, Snapshot, Usage
from service.jobs.model.serialization import snapshots_json
from service.jobs.queue import Queue
from service.jobs.redis import keys
from service.jobs.storage.object_store import Store, output_key, snapshot_key
from service.settings.queue import QueueSettings
from service.settings.tenants import TenantSettings
from tests.service.adapters import TAKING
from tests.service.standin import MODEL, SPEC, StandIn, picture

CAT = {"prompt": "a cat", "model": MODEL, "seed": 10, "num_images": 4, "stop_at_step": 2}
SIZE = 100
"""Size of a draft in bytes."""


async def paused(
    http: httpx.AsyncClient, queue: Queue, store: Store, spec: ModelSpec = SPEC, **body: Any
) -> Job:
    """Create a paused audition, whose images have reached their step."""
    await queue.register("pool", spec, ready=True)
    answer = await http.post("/v1/generate", json={**CAT, **body})
    assert answer.status_code == 202, answer.text
    [claim] = await queue.claim("pool", MODEL, 4)
    job, drafts, outputs = claim.job, [], []
    for number in range(job.images):
        preview = output_key(job.id, claim.fence, number, "image/png")
        await store.put(preview, picture(), "image/png")
        state = snapshot_key(job.id, claim.fence, number, 2)
        await store.put(state, b"%d" % number * SIZE, "application/octet-stream")
        output = Output(
            index=number, key=preview, content_type="image/png", width=32, height=32,
            seed=job.seed_of(number), bytes=len(picture()),
            sha256=hashlib.sha256(picture()).hexdigest(),
        )  # fmt: skip
        outputs.append(output)
        drafts.append(
            Snapshot(
                index=number, step=2, fence=claim.fence, device_seconds=1.0,
                key=state, bytes=SIZE, outputs=(output,),
            )
        )  # fmt: skip
    assert await queue.snapshot(claim, drafts)
    assert await queue.finish(claim, outputs, Usage(steps=8, device_seconds=4.0))
    current = await queue.get(job.id)
    assert current
    return current


async def continue_job(http: httpx.AsyncClient, job: Job, **body: Any) -> httpx.Response:
    return await http.post(f"/v1/jobs/{job.id}/continue", json=body)


async def test_paused_job_has_previews_and_their_expiry(
    http: httpx.AsyncClient, queue: Queue, store: Store
) -> None:
    job = await paused(http, queue, store)
    view = (await http.get(f"/v1/jobs/{job.id}")).json()
    assert (view["state"], view["progress"]) == ("paused", {"step": 0, "steps": 8})
    assert [output["seed"] for output in view["outputs"]] == [10, 11, 12, 13]
    assert view["expires_at"] > view["finished_at"]
    file = await http.get(view["outputs"][3]["url"])
    assert file.content == picture()
    events = await http.get(f"/v1/jobs/{job.id}/events")
    assert events.text.rstrip().splitlines()[-2] == "event: paused"
    listed = (await http.get("/v1/jobs", params={"state": "paused"})).json()["data"]
    assert [item["id"] for item in listed] == [job.id]


async def test_chosen_images_become_a_job_with_their_seeds_and_drafts(
    http: httpx.AsyncClient, queue: Queue, store: Store
) -> None:
    parent = await paused(http, queue, store)
    answer = await continue_job(http, parent, images=[3, 1], metadata={"take": "2"})
    assert answer.status_code == 202, answer.text
    view = answer.json()
    assert view["continues"] == parent.id and view["metadata"] == {"take": "2"}
    assert view["progress"] == {"step": 4, "steps": 8}
    assert "stop_at_step" not in view["request"] and view["request"]["prompt"] == "a cat"
    assert not view["warnings"]
    job = await queue.get(view["id"])
    assert job and job.seeds == [13, 11] and job.drafted is None
    for draft, number in zip(job.snapshots, (3, 1), strict=True):
        assert await store.get(str(draft.key)) == b"%d" % number * SIZE
    await http.delete(f"/v1/jobs/{parent.id}")
    assert await store.exists(str(job.snapshots[0].key)), "copies that belong to the new job"


async def test_without_a_choice_all_images_are_finished(
    http: httpx.AsyncClient, queue: Queue, store: Store
) -> None:
    parent = await paused(http, queue, store)
    assert (await continue_job(http, parent)).json()["request"]["num_images"] == 4


async def test_continuation_can_change_the_prompt(
    http: httpx.AsyncClient, queue: Queue, store: Store
) -> None:
    parent = await paused(http, queue, store)
    answer = await continue_job(http, parent, images=[0], prompt="a dog", guidance_scale=2.5)
    assert answer.status_code == 202, answer.text
    warned = {warning["field"]: warning["message"] for warning in answer.json()["warnings"]}
    assert warned.keys() == {"prompt", "guidance_scale"}
    assert "branches of their drafts" in warned["prompt"]
    job = await queue.get(answer.json()["id"])
    assert job and job.drafted
    assert job.drafted.fields == {"prompt": "a cat", "guidance_scale": 3.5}
    assert job.drafted.steps == 2


async def test_continuation_can_have_more_steps(
    http: httpx.AsyncClient, queue: Queue, store: Store
) -> None:
    listed = await paused(http, queue, store, sigmas=[1, 0.75, 0.5, 0.25])
    answer = await continue_job(http, listed, num_inference_steps=8)
    assert "must be left out, because the audition has sigmas" in answer.text
    parent = await paused(http, queue, store)
    answer = await continue_job(http, parent, images=[0], num_inference_steps=8)
    assert answer.status_code == 202, answer.text
    [warning] = answer.json()["warnings"]
    assert warning["field"] == "num_inference_steps" and "no single request" in warning["message"]
    assert answer.json()["progress"] == {"step": 2, "steps": 8}
    job = await queue.get(answer.json()["id"])
    assert job and job.drafted and job.drafted.fields == {"num_inference_steps": 4}


async def test_later_noise_can_have_another_seed(
    http: httpx.AsyncClient, queue: Queue, store: Store
) -> None:
    parent = await paused(http, queue, store)
    answer = await continue_job(http, parent, images=[3, 1], seed=50)
    assert answer.status_code == 202, answer.text
    assert [warning["field"] for warning in answer.json()["warnings"]] == ["seed"]
    assert answer.json()["request"]["seed"] == 50
    job = await queue.get(answer.json()["id"])
    assert job and job.seeds == [50, 51]
    assert job.drafted and (job.drafted.fields, job.drafted.seeds) == ({}, (13, 11))


@pytest.mark.parametrize(
    ("body", "field", "said"),
    [
        ({"images": [4]}, "images", "number 4 does not exist"),
        ({"images": [1, 1]}, "images", "twice"),
        ({"images": []}, "images", "at least 1"),
        ({"images": [-1]}, "images.0", "at least 0"),
        ({"num_inference_steps": 3}, "num_inference_steps", "must be at least 4"),
        ({"num_inference_steps": 51}, "num_inference_steps", "50"),
        ({"width": 64}, "width", ""),
        ({"prompt": "x" * 100_000}, "prompt", "characters at most"),
    ],
)
async def test_invalid_continuation_is_named(
    http: httpx.AsyncClient, queue: Queue, store: Store, body: dict[str, Any], field: str, said: str
) -> None:
    answer = await continue_job(http, await paused(http, queue, store), **body)
    assert answer.status_code == 422
    [error] = answer.json()["errors"]
    assert error["field"] == field and said in error["message"]


@pytest.mark.parametrize("stop", [4, 5])
async def test_audition_pauses_at_its_stop_step(
    http: httpx.AsyncClient, queue: Queue, stop: int
) -> None:
    await queue.register("pool", SPEC, ready=True)
    answer = await http.post("/v1/generate", json={**CAT, "stop_at_step": stop})
    assert answer.status_code == 422
    assert "less than 4, the steps" in answer.json()["errors"][0]["message"]


async def test_only_a_paused_job_can_be_continued(http: httpx.AsyncClient, pool: StandIn) -> None:
    wait = {"Prefer": "wait"}
    job = (await http.post("/v1/generate", json={"prompt": "a cat"}, headers=wait)).json()
    answer = await http.post(f"/v1/jobs/{job['id']}/continue", json={})
    assert answer.status_code == 409
    assert answer.json()["error"]["code"] == "job_not_paused"
    assert (await http.post("/v1/jobs/job_none/continue", json={})).status_code == 404


async def test_draft_cannot_continue_with_other_weights(
    http: httpx.AsyncClient, queue: Queue, store: Store
) -> None:
    parent = await paused(http, queue, store)
    await queue.redis.hset(keys.job(parent.id), "fingerprint", "older")
    answer = await continue_job(http, parent)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "draft_stale")


async def expired(queue: Queue, store: Store, job: Job) -> None:
    """Let the time of a paused job's drafts pass, and delete them as front ends do."""
    await queue.redis.zadd(f"{keys.PREFIX}drafts", {job.id: 1}, xx=True)
    files = await queue.reap()
    assert files == [f"snapshots/{job.id}/"]
    await store.delete(files)


async def test_drafts_have_a_lifetime_of_their_own(
    http: httpx.AsyncClient, queue: Queue, store: Store
) -> None:
    parent = await paused(http, queue, store, draft_ttl_s=60)
    view = (await http.get(f"/v1/jobs/{parent.id}")).json()
    expires, drafts_expire, finished = (
        datetime.fromisoformat(view[name])
        for name in ("expires_at", "drafts_expire_at", "finished_at")
    )
    assert (drafts_expire - finished).total_seconds() == pytest.approx(60, abs=0.002)
    assert (expires - finished).days == 1
    [data] = (await http.get(f"/v1/jobs/{parent.id}/events")).text.rstrip().splitlines()[-1:]
    assert json.loads(data.removeprefix("data: "))["drafts_expire_at"] == view["drafts_expire_at"]
    assert await queue.reap() == []
    await expired(queue, store, parent)
    previews = sum(output.bytes for output in parent.outputs)
    assert (await queue.quota_usage(parent.tenant, TenantSettings())).stored_bytes == previews
    later = (await http.get(f"/v1/jobs/{parent.id}")).json()
    assert later == view, "still paused, with its previews"
    branch = await continue_job(http, parent, prompt="a dog")
    assert (branch.status_code, branch.json()["error"]["code"]) == (409, "draft_expired")
    answer = await continue_job(http, parent, images=[2])
    assert answer.status_code == 202, answer.text
    assert answer.json()["progress"] == {"step": 0, "steps": 4}
    assert "draft_ttl_s" not in answer.json()["request"]
    [warning] = answer.json()["warnings"]
    assert "computed from their first step" in warning["message"]
    job = await queue.get(answer.json()["id"])
    assert job and job.own_cost == job.cost and job.draft_steps is None
    await http.delete(f"/v1/jobs/{parent.id}")
    assert not await queue.redis.exists(f"{keys.PREFIX}drafts")


async def test_drafts_last_as_long_as_the_server_allows(
    http: httpx.AsyncClient, queue: Queue, store: Store
) -> None:
    parent = await paused(http, queue, store)
    assert parent.draft_ttl_s == QueueSettings().draft_retention_s
    answer = await http.post("/v1/generate", json={**CAT, "draft_ttl_s": 86401})
    assert answer.status_code == 422
    [error] = answer.json()["errors"]
    assert error == {"field": "draft_ttl_s", "message": "must be at most 86400 on this server"}
    whole = {name: value for name, value in CAT.items() if name != "stop_at_step"}
    answer = await http.post("/v1/generate", json={**whole, "draft_ttl_s": 60})
    [warning] = answer.json()["warnings"]
    assert warning == {"field": "draft_ttl_s", "message": "has no effect without stop_at_step"}
    await http.delete(f"/v1/jobs/{parent.id}")
    assert not await queue.redis.exists(f"{keys.PREFIX}drafts")


async def test_a_repeated_choice_is_one_job(
    http: httpx.AsyncClient, queue: Queue, store: Store
) -> None:
    parent = await paused(http, queue, store)
    address, once = f"/v1/jobs/{parent.id}/continue", {"Idempotency-Key": "once"}
    first = await http.post(address, json={"images": [1]}, headers=once)
    again = await http.post(address, json={"images": [1]}, headers=once)
    other = await http.post(address, json={"images": [2]}, headers=once)
    assert first.json()["id"] == again.json()["id"]
    assert other.json()["error"]["code"] == "idempotency_conflict"


async def test_format_defaults_to_the_audition_s(
    http: httpx.AsyncClient, queue: Queue, store: Store
) -> None:
    parent = await paused(http, queue, store, output={"format": "webp", "quality": 60})
    for output, expected in (
        ({"inline": True}, {"format": "webp", "quality": 60, "inline": True}),
        ({"format": "png"}, {"format": "png"}),
    ):
        resolved = (await continue_job(http, parent, output=output)).json()["request"]["output"]
        assert expected.items() <= resolved.items()
    address = f"/v1/jobs/{parent.id}/continue"
    headers = {"Accept": "image/jpeg", "Prefer": "wait=0"}
    answer = await http.post(address, json={"images": [0]}, headers=headers)
    assert answer.status_code == 504, answer.text
    (job,) = await queue.list(limit=1)
    assert job.request["output"]["format"] == "jpeg"


async def test_drafts_count_as_stored_bytes_while_they_exist(
    http: httpx.AsyncClient, queue: Queue, store: Store
) -> None:
    parent = await paused(http, queue, store)
    before = (await queue.quota_usage(parent.tenant, TenantSettings())).stored_bytes
    job = (await continue_job(http, parent, images=[0, 1])).json()["id"]
    assert (
        await queue.quota_usage(parent.tenant, TenantSettings())
    ).stored_bytes == before + 2 * SIZE
    await http.post(f"/v1/jobs/{job}/cancel")
    assert (await queue.quota_usage(parent.tenant, TenantSettings())).stored_bytes == before


async def test_a_branch_needs_a_state_and_a_run_without_a_stop_does_not(
    http: httpx.AsyncClient, queue: Queue, store: Store
) -> None:
    """States may be missing if there are several hosts."""
    parent = await paused(http, queue, store)
    bare = [draft.model_copy(update={"key": None, "bytes": 0}) for draft in parent.snapshots]
    await queue.redis.hset(keys.job(parent.id), "snapshots", snapshots_json(bare))
    answer = await continue_job(http, parent, prompt="a dog")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "draft_unfit")
    view = (await continue_job(http, parent)).json()
    assert view["progress"] == {"step": 0, "steps": 16}


async def test_deadline_of_a_continuation_counts_remaining_steps(
    http: httpx.AsyncClient, queue: Queue, store: Store
) -> None:
    parent = await paused(http, queue, store)
    first = (await continue_job(http, parent, images=[0])).json()
    job = await queue.get(first["id"])
    assert (
        job and job.remaining_share == 0.5 and job.draft_steps == 2 and job.own_cost == job.cost / 2
    )


async def test_adapters_can_be_added_and_left_out(
    http: httpx.AsyncClient, queue: Queue, store: Store
) -> None:
    ink = [{"name": "ink", "scale": 0.5}]
    for before, after in (({}, ink), ({"loras": ink}, []), ({"loras": ink}, [{"name": "oil"}])):
        parent = await paused(http, queue, store, TAKING, **before)
        answer = await continue_job(http, parent, images=[0], loras=after)
        assert answer.status_code == 202, answer.text
        job = await queue.get(answer.json()["id"])
        assert job and [lora.name for lora in job.loras] == [item["name"] for item in after]
        assert job.drafted and job.drafted.fields.keys() == {"loras"}
        assert bool(job.drafted.fields["loras"]) == bool(before)
        same = await continue_job(http, parent, images=[1])
        assert not same.json()["warnings"], "the audition's own adapters make no branch"
        for item in (job.id, same.json()["id"]):
            await http.delete(f"/v1/jobs/{item}")


async def test_input_images_are_copied(http: httpx.AsyncClient, queue: Queue, store: Store) -> None:
    image = base64.b64encode(picture(size=(96, 64))).decode()
    parent = await paused(
        http, queue, store, image=image, strength=0.9, num_inference_steps=10, num_images=1
    )
    answer = await continue_job(http, parent)
    assert answer.status_code == 202, answer.text
    job = await queue.get(answer.json()["id"])
    assert job and job.drafted is None and job.request["image"].startswith(f"inputs/{job.id}/")
    assert await store.get(job.request["image"]) == picture(size=(96, 64))
