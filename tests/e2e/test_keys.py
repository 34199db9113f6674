"""A system that wants keys, as its user has it: made, used and revoked while it runs, and a quota
that comes meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import httpx

from tests.e2e.conftest import Start
from tests.e2e.system import ATELIER, DEADLINE_S, environment, until


def atelier(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*ATELIER, *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env=environment() | variables,
    )


def policy(url: str, key: str) -> str:
    """The quotas that an answer tells of, here to a request that is refused."""
    headers = {"Authorization": f"Bearer {key}"}
    answer = httpx.post(f"{url}/v1/generate", json={}, headers=headers, trust_env=False)
    return answer.headers.get("ratelimit-policy", "")


def check_log(lines: list[str], key_id: str) -> None:
    """All lines about the job, front end's and pool's, name its request and key."""
    found = [json.loads(line.partition("|")[2]) for line in lines if '"job"' in line]
    (request_id,) = {line["request_id"] for line in found}
    assert request_id.startswith("req_")
    assert {(line["key_id"], line["tenant"]) for line in found} == {(key_id, "acme")}
    said = [line["message"] for line in found]
    assert any("was accepted" in one for one in said), said
    assert any("is worked on" in one for one in said), said
    assert any(one.endswith("left: succeeded") for one in said), said


def test_a_key_from_first_to_last(start: Start, state: Path, tmp_path: Path) -> None:
    system = start("--keys", ATELIER_LOG_FORMAT="json")
    generate = ("generate", "a star", "--server", system.url, "-o", str(tmp_path / "star.png"))
    refused = atelier(*generate)
    assert refused.returncode == 1 and "API key" in refused.stderr
    made = atelier("keys", "create", "--tenant", "acme", "--state", str(state))
    key = made.stdout.strip()
    done = atelier(*generate, ATELIER_API_KEY=key)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "star.png").read_bytes().startswith(b"\x89PNG")
    key_id = key.split("_")[1]
    check_log(system.lines, key_id)
    quota = ("tenants", "set", "acme", "max_queued=7", "--state", str(state))
    assert atelier(*quota).returncode == 0
    until(lambda: '"queued";q=7' in policy(system.url, key), "the tenant's quota", 20)
    assert atelier("keys", "revoke", key_id, "--state", str(state)).returncode == 0
    until(lambda: atelier(*generate, "--key", key).returncode == 1, "the end of the key", 20)
    os.kill(system.process.pid, 2)
    assert system.wait() == 0
    assert key not in "\n".join(system.lines)
