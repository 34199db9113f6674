"""A client by openapi-python-client: made without a warning, and used as the guide says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from service.jobs.queue import Queue
from tests.clients.generated.conftest import TENANT, Run
from tests.clients.generated.guide import block, command
from tests.service.standin import picture
from tests.test_arrows import ROOT

GENERATOR = "openapi-python-client"
REFUSED = """
answer = generate.sync_detailed(client=client, body=GenerateRequest("a cat", width=7))
assert (answer.status_code, type(answer.parsed)) == (422, ProblemView), answer
assert answer.parsed.errors[0].field == "width", answer.parsed
assert answer.parsed.error.code == "invalid_request", answer.parsed
"""
"""After the guide's program: errors come typed, too."""


@pytest.fixture
def made(tmp_path: Path) -> list[str]:
    """The command that makes the client, as the guide has it; no formatter goes over it."""
    (tmp_path / "openapi.yaml").write_text((ROOT / "openapi.yaml").read_text())
    (tmp_path / "client.yaml").write_text(f"post_hooks: []\n{block('yaml')}")
    return [str(Path(sys.executable).with_name(GENERATOR)), *command(GENERATOR)]


async def test_the_program_of_the_guide(
    run: Run, made: list[str], tmp_path: Path, queue: Queue
) -> None:
    said = await run(*made, "--fail-on-warning")
    assert "WARNING" not in said
    (tmp_path / "program.py").write_text(block("python") + REFUSED)
    said = await run(sys.executable, "program.py")
    (job,) = await queue.list(tenant=TENANT, limit=9)
    assert said.split() == [job.id, "succeeded", f"['{job.id}']"]
    assert (job.request["prompt"], job.request["seed"]) == ("a green cross", 7)
    assert (tmp_path / "cross.png").read_bytes() == picture()
