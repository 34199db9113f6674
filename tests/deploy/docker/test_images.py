"""The images build, and docker-compose.yml's services run in them.

`make images-check` runs these tests alone. They are skipped where Docker does not run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from deploy.exit_codes import EXIT_CONFIG
from tests.deploy.docker.dockerfile import ROOT
from tests.service.jobs.servers import free_port

PROJECT = "atelier-images-check"
COMPOSE = ("docker", "compose", "--project-name", PROJECT, "--profile", "cpu")
MAX_FRONT_END_MB = 350
"""Largest size of the front end's installed packages and Atelier."""
PICTURE = "/var/lib/atelier/picture.png"
PORT = str(free_port())
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module", autouse=True)
def docker() -> None:
    commands = (("docker", "info"), ("docker", "compose", "version"))
    if not shutil.which("docker") or any(run(command)[0] for command in commands):
        pytest.skip("no Docker with Compose runs here")


def run(command: Sequence[str]) -> tuple[int, str]:
    """Run a command in the project's root; returns its exit code and output."""
    process = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"ATELIER_PORT": PORT},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    return process.returncode, process.stdout


def compose(*words: str) -> tuple[int, str]:
    return run([*COMPOSE, *words])


def execute(service: str, *command: str) -> tuple[int, str]:
    """Run a command in a service's container."""
    return compose("exec", "-T", service, *command)


@contextmanager
def services(*names: str) -> Iterator[None]:
    """Build and start services until they are healthy; at the end, all must exit with 0."""
    try:
        code, output = compose("up", "--build", "--wait", *names)
        assert code == 0, output
        yield
        compose("stop")
        assert exit_codes() == {"0"}
    finally:
        compose("down", "--volumes")


def exit_codes() -> set[str]:
    label = f"label=com.docker.compose.project={PROJECT}"
    _, ids = run(["docker", "ps", "--all", "--quiet", "--filter", label])
    inspect = ("docker", "inspect", "--format", "{{.State.ExitCode}}")
    return set(run([*inspect, *ids.split()])[1].split())


def test_front_end_runs_without_privileges_and_drains() -> None:
    with services("redis", "frontend"):
        program = "import os; print(os.getuid(), os.access('/opt', os.W_OK)); open('/tmp/x', 'w')"
        assert execute("frontend", "python", "-c", program) == (0, "10001 False\n")
        size_mb = int(execute("frontend", "du", "-sm", "/opt/atelier")[1].split()[0])
        assert size_mb < MAX_FRONT_END_MB
        code, output = execute("frontend", "atelier", "worker", "--pool", "flux-demo")
        assert (code, ".[cpu]" in output) == (EXIT_CONFIG, True), output
        public = ("env", "ATELIER_SERVER__PUBLISHED_AT=0.0.0.0", "atelier", "serve")
        code, output = execute("frontend", *public)
        assert code == EXIT_CONFIG and "no API key exists yet" in output, output
        code, output = execute("frontend", "atelier", "keys", "create", "--tenant", "acme")
        assert code == 0 and "atl_" in output, output


def test_demo_worker_generates_an_image_and_drains() -> None:
    with services("redis", "frontend", "flux-demo"):
        prompt = "a red circle on a blue background"
        command = ("atelier", "generate", prompt, "--seed", "7", "--output", PICTURE)
        code, output = execute("frontend", *command)
        assert code == 0, output
        read = f"print(open({PICTURE!r}, 'rb').read(8))"
        assert execute("frontend", "python", "-c", read) == (0, "b'\\x89PNG\\r\\n\\x1a\\n'\n")
