"""`atelier admin` against a real front end."""

from __future__ import annotations

import json
import re
from functools import partial

import pytest

import atelier
from deploy.cli import admin, jobs
from service.jobs.model.job import DEFAULT_TENANT
from service.jobs.queue import Queue
from service.settings.tenants import TenantSettings
from tests.deploy.cli.conftest import Run
from tests.service.adapters import INK
from tests.service.jobs.examples import FAILURE, a_job
from tests.service.standin import MODEL, SPEC


async def put(queue: Queue, tenant: str) -> str:
    return (await queue.put(a_job(model=MODEL, tenant=tenant)))[0].id


async def test_operator_commands(run: Run, queue: Queue) -> None:
    heartbeat = partial(
        queue.register, "pool-1", SPEC, ready=True
    )  # a busy machine can outlast a heartbeat
    await heartbeat()
    first, second = await put(queue, "acme"), await put(queue, "zoo")
    await queue.claim("pool-1", MODEL, 1)
    code, out, _ = await run("admin", "jobs")
    assert code == 0 and [line.split()[0] for line in out.splitlines()] == [second, first]
    code, out, _ = await run("admin", "jobs", "--tenant", "acme", "--json")
    assert [json.loads(line)["state"] for line in out.splitlines()] == ["running"]
    code, out, _ = await run("admin", "jobs", "--served-by", MODEL, "--tenant", "zoo")
    assert code == 0 and [line.split()[0] for line in out.splitlines()] == [second]
    assert (await run("admin", "jobs", "--served-by", f"{MODEL}@r2"))[:2] == (0, "")
    code, _, err = await run("admin", "requeue", first, "--reason", "a sick chip")
    assert code == 0 and f"{first} is queued" in err
    await heartbeat()
    code, out, _ = await run("admin", "drain", "pool", "pool", "--reason", "a driver")
    assert code == 0 and out.startswith("pool pool is paused, drained by ") and "a driver" in out
    assert not await queue.claim("pool-1", MODEL, 1)
    code, out, _ = await run("admin", "overview")
    assert [pause["name"] for pause in json.loads(out)["paused"]] == ["pool"]
    assert (await run("admin", "resume", "pool", "pool"))[:2] == (0, "")
    await heartbeat()
    code, out, _ = await run("admin", "sleep", "pool", "--reason", "training")
    assert code == 0 and out.startswith("pool was put to sleep by ") and "training" in out
    assert (await run("admin", "wake", "pool"))[:2] == (0, "")
    code, _, err = await run("admin", "cancel", first, second)
    assert code == 0 and err.count("is canceled") == 2
    code, _, err = await run("admin", "requeue", first)
    assert code == atelier.EXIT_FAILED and "an end is final" in err
    code, out, _ = await run("admin", "audit")
    lines = [re.split(" {2,}", line, maxsplit=4) for line in out.splitlines()]
    assert {(operator, address) for _, _, operator, address, _ in lines} == {("-", "127.0.0.1")}
    acts = [act for *_, act in lines]
    assert acts == [
        f"requeue job  {first}: a sick chip",
        "drain pool  pool: a driver",
        "resume pool  pool",
        "sleep pool  pool: training",
        "wake pool  pool",
        f"cancel job  {first}",
        f"cancel job  {second}",
        f"requeue job  {first}",
    ]
    code, out, _ = await run("admin", "audit", "--json", "--day", "2026-01-31")
    assert (code, out) == (0, "")


@pytest.mark.parametrize("command", [("admin", "jobs"), ("jobs", "list")], ids=" ".join)
async def test_truncated_list_is_reported(
    run: Run, queue: Queue, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    for module in (admin, jobs):
        monkeypatch.setattr(module, "PAGE", 5)
    job_ids = [await put(queue, DEFAULT_TENANT) for _ in range(21)][::-1]
    for options, count in (
        ((), 20),
        (("--limit", 12), 12),
        (("--limit", 21), 21),
        (("--all",), 21),
    ):
        code, out, err = await run(*command, *options)
        assert code == 0 and [line.split()[0] for line in out.splitlines()] == job_ids[:count]
        assert ("--all" in err) == (count < 21), options


async def test_failed_jobs_say_why(run: Run, queue: Queue) -> None:
    job = await put(queue, "acme")
    (claim,) = await queue.claim("pool-1", MODEL, 1)
    await queue.fail(claim, FAILURE, retry=False)
    code, out, _ = await run("admin", "jobs", "--state", "failed", "--limit", 1)
    assert code == 0 and out.startswith(job) and out.rstrip().endswith(FAILURE.code)


async def test_a_job_of_any_tenant_is_deleted(run: Run, queue: Queue) -> None:
    job = await put(queue, "acme")
    code, _, err = await run("admin", "delete", job, "--reason", "a complaint")
    assert code == 0 and err.strip() == f"deleted {job}"
    assert await queue.get(job) is None
    code, _, err = await run("admin", "delete", job)
    assert code == atelier.EXIT_FAILED and "there is no job" in err
    assert f"delete job  {job}: a complaint" in (await run("admin", "audit"))[1]


async def test_adapters_of_a_tenant_are_listed(run: Run, queue: Queue) -> None:
    await queue.record_lora("acme", INK, TenantSettings())
    code, out, _ = await run("admin", "loras", "acme")
    assert code == 0 and out.split()[:2] == [INK.name, INK.model]
    code, out, _ = await run("admin", "loras", "acme", "--json")
    assert json.loads(out)["digest"] == INK.digest
    assert (await run("admin", "loras", "zoo"))[:2] == (0, "")


async def test_an_adapter_is_evicted(run: Run, queue: Queue) -> None:
    await queue.record_lora("acme", INK, TenantSettings())
    code, _, err = await run("admin", "evict", "acme", INK.name, "--reason", "a claim")
    assert code == 0 and err.strip() == f"evicted {INK.name} of acme"
    assert not await queue.loras("acme")
    assert (await run("admin", "evict", "acme", INK.name))[0] == atelier.EXIT_FAILED


async def test_names_have_slashes(run: Run, queue: Queue) -> None:
    model = SPEC.model_copy(update={"name": "org/flux"})
    await queue.register("a/b-1", model, ready=True)
    for kind, name in (("model", "org/flux"), ("pool", "a/b"), ("pool", "a/b-1")):
        code, out, err = await run("admin", "pause", kind, name)
        assert code == 0 and f"{kind} {name} is paused by " in out and "warning" not in err
        assert (await run("admin", "resume", kind, name))[:2] == (0, "")


async def test_a_misspelt_name_is_noticed(run: Run, queue: Queue) -> None:
    await queue.register("pool-1", SPEC, ready=True)
    code, out, err = await run("admin", "pause", "pool", "poool")
    assert code == 0 and out.startswith("pool poool is paused by ")
    assert (
        "warning: there is no pool 'poool' now; available: pool, pool-1: it will be paused" in err
    )


async def test_missing_objects(run: Run) -> None:
    for words in (("sleep", "none"), ("resume", "pool", "none"), ("cancel", "job_0")):
        code, _, err = await run("admin", *words)
        assert (code == atelier.EXIT_FAILED and "there is no" in err) or "is paused" in err
