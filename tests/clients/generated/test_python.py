"""Client by openapi-python-client: generated without warnings and used as in the guide."""

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
"""Check appended to the guide's program: errors are typed."""


@pytest.fixture
def made(tmp_path: Path) -> list[str]:
    """Command that generates the client as in the guide, without formatters."""
    (tmp_path / "openapi.yaml").write_text((ROOT / "openapi.yaml").read_text())
    (tmp_path / "client.yaml").write_text(f"post_hooks: []\n{block('yaml')}")
    return [str(Path(sys.executable).with_name(GENERATOR)), *command(GENERATOR)]


async def test_the_program_of_the_guide(
    run: Run, made: list[str], tmp_path: Path, queue: Queue
) -> None:
    output = await run(*made, "--fail-on-warning")
    assert "WARNING" not in output
    (tmp_path / "program.py").write_text(block("python") + REFUSED)
    output = await run(sys.executable, "program.py")
    (job,) = await queue.list(tenant=TENANT, limit=9)
    assert output.split() == [job.id, "succeeded", f"['{job.id}']"]
    assert (job.request["prompt"], job.request["seed"]) == ("a green cross", 7)
    assert (tmp_path / "cross.png").read_bytes() == picture()
