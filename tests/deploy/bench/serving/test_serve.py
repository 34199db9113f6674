"""`bench serve` against a real front end and queue over HTTP; only the pool is a stand-in."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deploy.bench.serving.load import Alone, NotMeasured
from deploy.bench.serving.report import report
from deploy.bench.serving.request_outcome import (
    LOST,
    REFUSED,
    SUCCEEDED,
    UNFINISHED,
    UNREACHABLE,
    RequestOutcome,
)
from deploy.bench.serving.run import Plan, Run, measure
from deploy.bench.serving.server import Server
from deploy.bench.serving.timed_request import TimedRequest, read_trace, write_trace
from deploy.cli import bench_serve
from deploy.exit_codes import EXIT_INTERRUPTED, EXIT_UNREACHABLE, UsageError
from service.client import ServiceUnreachable
from service.jobs.model.job import JobError, JobState
from service.jobs.queue import Queue
from service.settings.redis import RedisSettings
from service.settings.server import ServerSettings
from service.settings.settings import Settings
from service.settings.tenants import TenantSettings
from tests.deploy.bench.serving.conftest import FrontEnd
from tests.service.standin import MODEL, StandIn
from tests.workers.polling import until

ENTRY = TimedRequest(at_s=0, request={"model": MODEL, "prompt": "a star", "seed": 1})
PATIENCE_S = 240.0
PLAN = Plan(window_s=0.0, alone=0, unloaded_times={}, patience_s=PATIENCE_S)
COMMAND = """
import argparse, sys
from deploy.cli import bench_serve
parser = argparse.ArgumentParser()
bench_serve.add_arguments(parser)
sys.exit(bench_serve.run(parser.parse_args()))
"""
CONNECTIONS = 4


def command(*arguments: str) -> int:
    """Run `atelier bench serve`."""
    parser = argparse.ArgumentParser()
    bench_serve.add_arguments(parser)
    return bench_serve.run(parser.parse_args(arguments))


def entries(count: int, every_s: float = 0.01, **changes: Any) -> list[TimedRequest]:
    return [ENTRY.model_copy(update={"at_s": n * every_s} | changes) for n in range(count)]


def server_at(front: FrontEnd) -> Server:
    return Server(front.url, {}, CONNECTIONS)


async def sent(front: FrontEnd, load: list[TimedRequest], plan: Plan = PLAN) -> Run:
    async with server_at(front) as server:
        return await measure(server, front.url, load, plan, lambda text: None)


async def test_a_load_from_its_plan_to_its_report(front: FrontEnd, pool: StandIn) -> None:
    """Two tenants with deadlines; each shape is first measured alone."""
    load = [
        entry.model_copy(update={"tenant": tenant, "deadline_scale": 1000.0})
        for entry, tenant in zip(entries(12), ("one", "two") * 6, strict=True)
    ]
    run = await sent(
        front, load, Plan(window_s=0.2, alone=2, unloaded_times={}, patience_s=PATIENCE_S)
    )
    assert [answer.outcome for answer in run.answers] == [SUCCEEDED] * 12
    alone = run.alone[ENTRY.shape]
    assert (alone.samples, alone.device_s) == (2, pytest.approx(0.1, abs=1e-9))
    for answer in run.answers:
        assert answer.deadline_s == pytest.approx(1000 * alone.whole_s, abs=1e-9)
        parts = [answer.late_s, answer.accept_s, answer.queue_s, answer.run_s, answer.fetch_s]
        assert all(part is not None and part >= 0 for part in parts)
        assert answer.whole_s > answer.queue_s + answer.run_s - 0.002, "stamps are milliseconds"
    result = report(run, [1000.0], {})
    assert result["throughput"]["pictures_per_s"] <= 60
    assert result["goodput"][0]["share"] == result["deadlines"][0]["share"] == 1
    assert result["offered_device_s_per_s"] == pytest.approx(12 * 0.1 / 0.2, rel=1e-6)
    assert set(result["waits"]["by_tenant"]) == {"one", "two"}
    assert {job.request["deadline_s"] for job in pool.received[3:]} == {run.answers[0].deadline_s}


async def test_a_server_that_reuses_files(
    front: FrontEnd, pool: StandIn, settings: Settings
) -> None:
    """Single requests before the load are generated each time, and no request gets their files."""
    await front.stop()
    await front.start(queue=settings.queue.model_copy(update={"reuse": True}))
    run = await sent(front, entries(1), replace(PLAN, alone=2))
    assert len(pool.received) == 4
    run = await sent(front, entries(2), PLAN)
    result = report(run, [1.0], {})["reuse"]
    assert (result["repeated"], result["reused"], result["hits"]) == (1, 2, 2)
    assert len(pool.received) == 4


async def test_requests_are_sent_on_time_regardless_of_responses(
    front: FrontEnd, pool: StandIn
) -> None:
    """Requests are sent on time over few connections although none finishes; all then succeed."""
    pool.may_finish.clear()
    peak, load = 0, entries(20)

    async def watch() -> bool:
        nonlocal peak
        peak = max(peak, front.connections)
        return (await pool.queue.depths())[MODEL].queued == 19

    sending = asyncio.create_task(sent(front, load))
    await until(watch)
    pool.may_finish.set()
    run = await sending
    assert 1 < peak <= CONNECTIONS
    assert [answer.outcome for answer in run.answers] == [SUCCEEDED] * 20
    outside_s = [answer.outside_s - answer.fetch_s for answer in run.answers]
    assert min(outside_s) >= -0.002, "stamps are milliseconds"


async def test_an_end_that_no_connection_was_free_to_follow(
    front: FrontEnd, pool: StandIn, queue: Queue
) -> None:
    """An end that no free connection followed is timed by the server's clock, not by its
    arrival."""
    pool.may_finish.clear()
    first, second = RequestOutcome(ENTRY), RequestOutcome(ENTRY)
    async with Server(front.url, {}, connections=2) as server:
        tasks = []
        for answer in (first, second):
            tasks.append(asyncio.create_task(server.execute(answer)))
            await until(lambda: answer.job_id)  # noqa: B023 - it is awaited here
        await queue.cancel(second.job_id)
        ended = time.perf_counter()
        await until(lambda: time.perf_counter() > ended + 0.2 + 2 * second.accept_s)
        pool.may_finish.set()
        await asyncio.gather(*tasks)
    assert (first.outcome, second.outcome, server.followed_late) == (SUCCEEDED, "canceled", 1)
    assert second.whole_s < first.whole_s - 0.2


async def test_refusals_have_reasons_and_unfinished_jobs_are_canceled(
    front: FrontEnd, pool: StandIn, queue: Queue
) -> None:
    await front.stop()
    await front.start(tenants={"*": TenantSettings(max_queued=1)})
    pool.may_finish.clear()
    run = await sent(front, entries(8, every_s=0.05), replace(PLAN, patience_s=10))
    result = report(run, [1.0], {})
    refused = result["outcomes"][REFUSED]  # one more if the pool claims the first job late
    assert refused in (6, 7) and result["outcomes"][UNFINISHED] == 8 - refused
    (row,) = result["refusals"]
    assert (row["status"], row["reason"], row["count"]) == (429, "quota_exceeded", refused)
    assert row["retry_after_s"]["p50"] >= 1
    for answer in run.answers:
        if answer.outcome == UNFINISHED:
            assert answer.job_id
            assert (await queue.get(answer.job_id)).state is JobState.CANCELED


async def test_server_restart_during_the_load(front: FrontEnd, pool: StandIn) -> None:
    """Accepted jobs are followed across a restart; a request to a stopped server is recorded."""
    pool.may_finish.clear()
    accepted, missed = [RequestOutcome(ENTRY), RequestOutcome(ENTRY)], RequestOutcome(ENTRY)
    async with server_at(front) as server:
        following = [asyncio.create_task(server.execute(answer)) for answer in accepted]
        await until(lambda: all(answer.job_id for answer in accepted))
        await front.stop()
        await server.execute(missed)
        await until(lambda: server.lost > 0)
        await front.start()
        pool.may_finish.set()
        await asyncio.gather(*following)
    assert [answer.outcome for answer in accepted] == [SUCCEEDED] * 2
    assert (missed.outcome, missed.reason, missed.whole_s) == (UNREACHABLE, "ConnectError", None)


async def test_failing_solo_measurement_names_the_model(front: FrontEnd, pool: StandIn) -> None:
    pool.failure = JobError(code="non_finite", message="not a number")
    with pytest.raises(NotMeasured, match=f"{MODEL}: failed, non_finite: not a number"):
        await sent(front, entries(1), replace(PLAN, alone=1))
    refused = entries(1, request={**ENTRY.request, "quality": "none"})
    with pytest.raises(NotMeasured, match="refused, invalid_request: quality: the model"):
        await sent(front, refused, replace(PLAN, alone=1))
    measured = {ENTRY.shape: Alone(1.0, 0.1, 0.1, 0.8, 0.7, 0.2, 0.1, samples=1)}
    run = await sent(front, entries(1), replace(PLAN, alone=1, unloaded_times=measured))
    assert report(run, [1.0], {})["reasons"] == {"failed: non_finite": 1}


async def test_unfinished_solo_measurement_is_canceled(
    front: FrontEnd, pool: StandIn, queue: Queue
) -> None:
    pool.may_finish.clear()
    with pytest.raises(NotMeasured, match=f"{MODEL}: not done after 0.5 s; .*--patience"):
        await sent(front, entries(1), replace(PLAN, alone=1, patience_s=0.5))
    (job,) = pool.received
    assert (await queue.get(job.id)).state is JobState.CANCELED


async def test_access_errors_are_reported_before_the_load(
    front: FrontEnd, pool: StandIn, redis_url: str
) -> None:
    """Errors for an unreachable server, a wrong key and an unknown model precede any load."""
    assert await asyncio.to_thread(command, "--server", "http://127.0.0.1:9") == EXIT_UNREACHABLE
    with pytest.raises(UsageError, match=f"no model 'x'; the server has {MODEL}"):
        await asyncio.to_thread(command, "--server", front.url, "--shape", "x")
    await front.stop()
    await front.start(server=ServerSettings(keys=True), redis=RedisSettings(url=redis_url))
    with pytest.raises(UsageError, match="rejects the API key: "):
        await asyncio.to_thread(command, "--server", front.url, "--key", "wrong")


async def test_contradicting_options_are_named(
    front: FrontEnd, pool: StandIn, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.jsonl"
    write_trace(trace, entries(2, deadline_scale=3.0))
    at = ("--server", front.url, "--trace", str(trace))
    with pytest.raises(UsageError, match="--alone-from"):
        await asyncio.to_thread(command, *at, "--alone", "0")
    with pytest.raises(UsageError, match="leave it out with --trace"):
        await asyncio.to_thread(command, *at, "--rate", "3")
    with pytest.raises(UsageError, match="there is no folder"):
        await asyncio.to_thread(command, *at, "--json", str(tmp_path / "none" / "report.json"))
    with pytest.raises(UsageError, match="is not a report of"):
        await asyncio.to_thread(command, *at, "--alone-from", str(trace))
    assert not pool.received


async def test_a_server_of_another_kind() -> None:
    """A server that answers every request with 200, but not with this API's bodies."""

    bodies = {"POST": "hello"}

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method = (await reader.readuntil(b"\r\n\r\n")).split()[0].decode()
        body = bodies.get(method, "hello")
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(f"{head}{body}".encode())
        await writer.drain()
        writer.close()

    refused, accepted = RequestOutcome(ENTRY), RequestOutcome(ENTRY)
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server_:
        url = f"http://127.0.0.1:{server_.sockets[0].getsockname()[1]}"
        async with Server(url, {}, CONNECTIONS) as server:
            with pytest.raises(ServiceUnreachable, match="has no list of models"):
                await server.models()
            await server.execute(refused)
            end = 'event: succeeded\ndata: {"state": "succeeded", "created_at": "once"}\n\n'
            bodies |= {"POST": '{"id": "job"}', "GET": end}
            await server.execute(accepted)
    assert (refused.outcome, refused.reason) == (UNREACHABLE, "JSONDecodeError")
    assert (accepted.outcome, accepted.reason) == (LOST, "its end: ValueError")


async def test_interrupt_prints_the_partial_report(
    front: FrontEnd, pool: StandIn, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.jsonl"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", COMMAND, "--server", front.url, "--alone", "0", "--rate", "20",
        "--seconds", "3600", "--write-trace", str(trace), "--json", "-",
        stdout=subprocess.PIPE,
    )  # fmt: skip
    await until(lambda: len(pool.received) >= 10)
    process.send_signal(signal.SIGINT)
    out, _ = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    assert process.returncode == EXIT_INTERRUPTED
    result = json.loads(out)
    assert result["interrupted"] and 10 <= result["sent"] < result["planned"] == len(
        read_trace(trace)
    )
    assert result["outcomes"][SUCCEEDED] >= 1
    assert result["throughput"]["window_s"] < 600
