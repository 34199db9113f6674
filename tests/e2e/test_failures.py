"""Failures that a system survives, and ways to stop it; `test_keys.py` covers Ctrl-C."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import httpx

from service.client import ApiError, Client, ServiceUnreachable
from tests.e2e.conftest import Start
from tests.e2e.system import ATELIER, DEADLINE_S, START_S, System, children, is_alive, until

LONG = {"prompt": "a star", "width": 64, "height": 64, "num_inference_steps": 200, "seed": 1}
"""Enough steps to interrupt a job midway on most machines."""
PATIENT = {"ATELIER_QUEUE__MAX_DEATHS": "100", "ATELIER_QUEUE__MAX_ATTEMPTS": "100"}
"""Attempt limits for short leases, which also expire on a busy machine."""
DRAIN_S = 600


def start_long_job(client: Client, **fields: int) -> str:
    """Submit a job of LONG and wait for its first step; returns its id."""
    job = client.submit(LONG | {"num_images": 4} | fields)
    until(lambda: client.job()["progress"]["step"] > 0, "a first step")
    return str(job["id"])


def test_job_survives_a_pool_crash(start: Start, state: Path) -> None:
    system = start(ATELIER_QUEUE__LEASE_S="3600", ATELIER_QUEUE__REAP_EVERY_S="0.5")
    with Client(system.url) as client:
        while not system.kill_pool(state, start_long_job(client)):
            pass  # the job ended before the kill
        system.wait_for("tiny ended .killed by SIGKILL.; starting it again", DEADLINE_S)
        names = [event.name for event in client.follow()]
        assert names.count("running") == 2, "the second pool did not take it up"
        assert names[-1] == "succeeded"
        assert len(client.job()["outputs"]) == 4


def test_supervisor_kill_leaves_no_process_and_loses_no_job(start: Start) -> None:
    variables = PATIENT | {"ATELIER_QUEUE__LEASE_S": "2", "ATELIER_QUEUE__REAP_EVERY_S": "0.5"}
    system = start(**variables)
    with Client(system.url) as client:
        job_id = start_long_job(client)
    family = children(system.process.pid)
    assert len(family) == 3
    system.process.kill()
    until(lambda: not any(is_alive(pid) for pid in family), "the end of every child")
    with Client(start(**variables).url) as client:
        client.job_id = job_id
        assert [event.name for event in client.follow()][-1] == "succeeded"
        assert len(client.job()["outputs"]) == 4


def test_second_ctrl_c_exits_immediately(start: Start) -> None:
    pool = {"model": "tiny", "slots": 2, "drain_s": DRAIN_S}
    system = start(ATELIER_POOLS=json.dumps({"tiny": pool}))
    with Client(system.url) as client:
        start_long_job(client)
    worker = system.child("worker")
    os.kill(worker, signal.SIGSTOP)  # prevents a drain
    os.kill(system.process.pid, signal.SIGINT)
    system.wait_for("stopping: the pools", DEADLINE_S)

    def another_was_heard() -> bool:
        system.process.send_signal(signal.SIGINT)
        return "stopping at once" in system.lines

    until(another_was_heard, "an answer to a second Ctrl-C")
    assert system.wait(DRAIN_S / 5) == 0
    assert not is_alive(worker)


def test_killed_redis_restarts_and_running_jobs_continue(start: Start, state: Path) -> None:
    system = start()
    with Client(system.url) as client:
        start_long_job(client)
        os.kill(system.child("-server "), signal.SIGKILL)
        system.wait_for("the embedded Redis runs again", DEADLINE_S)
        assert [event.name for event in client.follow()][-1] == "succeeded"
        assert len(client.job()["outputs"]) == 4
    (manifest,) = (state / "redis" / "appendonlydir").glob("*.manifest")
    sound = manifest.read_text()
    manifest.write_text("nonsense")
    os.kill(system.child("-server "), signal.SIGKILL)
    assert system.wait() == 78
    assert "valkey-check-aof --fix" in system.lines[-1]
    manifest.write_text(sound)


def test_occupied_port_is_reported(checkpoint: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = str(holder.getsockname()[1])
        process = subprocess.run(
            [*ATELIER, "up", "--port", port, "--state", tmp_path, "--model", f"tiny={checkpoint}"],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
    assert process.returncode == 78
    assert f"port {port}" in process.stderr
    assert "--port" in process.stderr


def test_unservable_model_does_not_stop_others(
    start: Start, checkpoint: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(checkpoint, broken)
    (broken / "scheduler" / "scheduler_config.json").write_text('{"shift": "x"}')
    system = start("--model", f"broken={broken}")
    system.wait_for("scheduler_config.json: shift must be a number, not 'x'", START_S)
    system.wait_for("broken can't start .*The others go on", DEADLINE_S)
    system.wait_for("^tiny is ready at", START_S)
    assert not any("starting it again" in line for line in system.lines)
    assert system.process.poll() is None


def test_invalid_checkpoint_exits_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model_index.json").write_text('{"_class_name": "AudioPipeline"}')
    system = System(tmp_path, "--model", f"odd={tmp_path / 'model'}")
    try:
        assert system.wait() == 78
        assert any("AudioPipeline" in line for line in system.lines)
    finally:
        system.close()


def test_overlapping_crashes_change_no_image(start: Start) -> None:
    """Pool, Redis and front end are killed in pairs, then the supervisor, during jobs of four
    images each."""
    settings = PATIENT | {"ATELIER_QUEUE__LEASE_S": "2", "ATELIER_QUEUE__REAP_EVERY_S": "0.5"}
    settings["ATELIER_POOLS"] = json.dumps({"tiny": {"model": "tiny", "slots": 4}})
    system = start(**settings)
    with Client(system.url) as client:
        ids = [start_long_job(client, seed=seed) for seed in (0, 4)]
        kill_both(system, "worker", "-server ")
        until(lambda: goes_on(client, ids), "a job goes on", START_S)
        kill_both(system, "worker", "serve --fd")
        until(lambda: goes_on(client, ids), "a job goes on", START_S)
    family = children(system.process.pid)
    system.process.kill()
    until(lambda: not any(is_alive(pid) for pid in family), "the end of every child")
    url = start(**settings).url
    disturbed = [pictures(url, job_id) for job_id in ids]
    with Client(url) as client:
        ids = [start_long_job(client, seed=seed) for seed in (0, 4)]
    assert disturbed == [pictures(url, job_id) for job_id in ids]


def kill_both(system: System, *commands: str) -> None:
    """Kill the processes and wait until the supervisor has restarted them."""
    pids = [system.child(command) for command in commands]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    until(lambda: is_whole(system, pids), "all processes restarted", START_S)


def is_whole(system: System, dead: list[int]) -> bool:
    assert system.process.poll() is None, "\n".join(system.lines)
    return len(children(system.process.pid)) == 3 and not any(is_alive(pid) for pid in dead)


def goes_on(client: Client, ids: list[str]) -> bool:
    """Whether a job has progressed, or all have succeeded."""
    try:
        jobs = [job_of(client, job_id) for job_id in ids]
    except (ApiError, ServiceUnreachable, httpx.HTTPError):  # the front end is not up yet
        return False
    states = {job["state"] for job in jobs}
    return states == {"succeeded"} or any(
        job["state"] == "running" and job["progress"]["step"] > 0 for job in jobs
    )


def job_of(client: Client, job_id: str) -> dict[str, Any]:
    client.job_id = job_id
    return client.job()


def pictures(url: str, job_id: str) -> list[str]:
    """Digests of a job's images after it ended."""
    with Client(url) as client:
        client.job_id = job_id
        assert [event.name for event in client.follow()][-1] == "succeeded"
        return [output["sha256"] for output in client.job()["outputs"]]
