"""Client by openapi-typescript: compiled with strict types and used as in the guide.

`make test` installs the packages; tests are skipped without Node.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from service.jobs.queue import Queue
from tests.clients.generated.conftest import TENANT, Run
from tests.clients.generated.guide import block, command
from tests.service.standin import picture
from tests.test_arrows import ROOT

PACKAGES = ROOT / "tests" / "clients" / "node" / "node_modules"
TSC = (
    *("node", "node_modules/typescript/bin/tsc", "--strict", "--module", "nodenext"),
    *("--target", "es2022", "--types", "node", "--skipLibCheck"),
)
WRONG = """
await atelier.POST("/v1/generate", {
  // @ts-expect-error: a number of steps is no text
  body: { prompt: "a cat", num_inference_steps: "4" },
});
// @ts-expect-error: no job has such a state
await atelier.GET("/v1/jobs", { params: { query: { state: "done" } } });
const refused = await atelier.POST("/v1/generate", { body: { prompt: "a cat", width: 7 } });
if (refused.error?.errors?.[0]?.field !== "width") throw new Error(JSON.stringify(refused.error));
"""
"""Check appended to the guide's program: the compiler finds wrong types, and errors are typed."""

pytestmark = [
    pytest.mark.skipif(not shutil.which("node"), reason="Node is not here (https://nodejs.org)"),
    pytest.mark.skipif(
        not (PACKAGES / "openapi-typescript").exists(),
        reason="the packages of tests/clients/node are not installed: `make test` does it by npm",
    ),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "node_modules").symlink_to(PACKAGES)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "openapi.yaml").write_text((ROOT / "openapi.yaml").read_text())
    (tmp_path / "program.ts").write_text(block("typescript") + WRONG)
    return tmp_path


async def test_the_program_of_the_guide(run: Run, folder: Path, queue: Queue) -> None:
    generator = "node_modules/openapi-typescript/bin/cli.js"
    await run("node", generator, *command("openapi-typescript"))
    await run(*TSC, "program.ts")
    output = await run("node", "program.js")
    (job,) = [
        job for job in await queue.list(tenant=TENANT, limit=9) if job.request.get("seed") == 7
    ]
    assert output.split() == [job.id, "succeeded", "[", f"'{job.id}'", "]"]
    assert (folder / "cross.png").read_bytes() == picture()
