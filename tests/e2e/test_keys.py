"""A system that wants keys, as its user has it: made, used and revoked while it runs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

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


def test_a_key_from_first_to_last(start: Start, state: Path, tmp_path: Path) -> None:
    system = start("--keys")
    generate = ("generate", "a star", "--server", system.url, "-o", str(tmp_path / "star.png"))
    refused = atelier(*generate)
    assert refused.returncode == 1 and "API key" in refused.stderr
    made = atelier("keys", "create", "--tenant", "acme", "--state", str(state))
    key = made.stdout.strip()
    done = atelier(*generate, ATELIER_API_KEY=key)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "star.png").read_bytes().startswith(b"\x89PNG")
    key_id = key.split("_")[1]
    assert atelier("keys", "revoke", key_id, "--state", str(state)).returncode == 0
    until(lambda: atelier(*generate, "--key", key).returncode == 1, "the end of the key", 20)
    os.kill(system.process.pid, 2)
    assert system.wait() == 0
    assert key not in "\n".join(system.lines)
