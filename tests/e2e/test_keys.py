"""A system with API keys: a key is made, used and revoked at run time, a quota is added, and a job
that Ctrl-C interrupts continues in the next system."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import httpx

from service.client import Client
from tests.e2e.conftest import Start
from tests.e2e.system import (
    ATELIER,
    DEADLINE_S,
    System,
    children,
    environment,
    is_alive,
    until,
)
from tests.e2e.test_failures import start_long_job


def atelier(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*ATELIER, *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env=environment() | variables,
    )


def policy(url: str, key: str) -> str:
    """Quotas in the header of a refused request's response."""
    headers = {"Authorization": f"Bearer {key}"}
    response = httpx.post(f"{url}/v1/generate", json={}, headers=headers, trust_env=False)
    return response.headers.get("ratelimit-policy", "")


def check_log(lines: list[str], key_id: str) -> None:
    """Every log line about the job, of front end and pool, contains its request id and key id."""
    records = [json.loads(line.partition("|")[2]) for line in lines if '"job"' in line]
    (request_id,) = {line["request_id"] for line in records}
    assert request_id.startswith("req_")
    assert {(line["key_id"], line["tenant"]) for line in records} == {(key_id, "acme")}
    messages = [line["message"] for line in records]
    assert any("was accepted" in message for message in messages), messages
    assert any(message.endswith(" runs") for message in messages), messages
    assert any(message.endswith("ended: succeeded") for message in messages), messages


def end_by_ctrl_c(system: System) -> None:
    """Ctrl-C drains the system and leaves no process."""
    family = children(system.process.pid)
    assert len(family) == 3, "Redis, the front end, a pool"
    os.kill(system.process.pid, signal.SIGINT)
    assert system.wait() == 0
    assert not any(is_alive(pid) for pid in family)
    lines = [line for line in system.lines if line.startswith(("stopping", "stopped"))]
    assert [line.split()[0] for line in lines] == ["stopping:", "stopping:", "stopped"]


def test_api_key_lifecycle(start: Start, state: Path, tmp_path: Path) -> None:
    system = start("--keys", ATELIER_LOG_FORMAT="json")
    generate = ("generate", "a star", "-o", str(tmp_path / "star.png"), "--server")
    refused = atelier(*generate, system.url)
    assert refused.returncode == 1 and "API key" in refused.stderr
    created = atelier("keys", "create", "--tenant", "acme", "--state", str(state))
    key = created.stdout.strip()
    process = atelier(*generate, system.url, ATELIER_API_KEY=key)
    assert process.returncode == 0, process.stderr
    assert (tmp_path / "star.png").read_bytes().startswith(b"\x89PNG")
    key_id = key.split("_")[1]
    check_log(system.lines, key_id)
    quota = ("tenants", "set", "acme", "max_queued=7", "--state", str(state))
    assert atelier(*quota).returncode == 0
    until(lambda: '"queued";q=7' in policy(system.url, key), "the tenant's quota", 20)
    with Client(system.url, key) as client:
        job_id = start_long_job(client)
    end_by_ctrl_c(system)
    restarted = start("--keys", ATELIER_LOG_FORMAT="json")
    with Client(restarted.url, key) as client:
        client.job_id = job_id
        assert [event.name for event in client.follow()][-1] == "succeeded"
    assert atelier("keys", "revoke", key_id, "--state", str(state)).returncode == 0
    until(
        lambda: atelier(*generate, restarted.url, "--key", key).returncode == 1,
        "the end of the key",
        20,
    )
    restarted.close()
    assert key not in "\n".join(system.lines + restarted.lines)
