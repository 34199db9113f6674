"""Child processes: output is relayed, and they are stopped and never orphaned."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from deploy.local.processes import Child, ending, importing_atelier
from service.settings.installation import IMPORT_ROOT
from tests.e2e.system import is_alive
from tests.e2e.system import until as until_now
from tests.workers.polling import until

Lines = list[tuple[str, str]]


def child(program: str, lines: Lines) -> Child:
    command = [sys.executable, "-c", program]
    return Child("it", command, os.environ, lambda name, line: lines.append((name, line)))


async def test_every_line_is_relayed_under_the_childs_name() -> None:
    lines: Lines = []
    program = "import sys; print('one'); print('two', file=sys.stderr, flush=True); sys.exit(3)"
    assert await child(program, lines).run() == 3
    assert sorted(lines) == [("it", "one"), ("it", "two")]


async def test_child_output_relay_survives_a_line_without_end() -> None:
    lines: Lines = []
    assert await child("print('x' * 3_000_000); print('after')", lines).run() == 0
    assert lines[-1] == ("it", "after")


async def test_child_gets_sigterm_before_sigkill() -> None:
    lines: Lines = []
    stubborn = child(
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True);"
        " time.sleep(60)",
        lines,
    )
    run = asyncio.create_task(stubborn.run())
    await until(lambda: bool(lines), 10)
    await stubborn.stop(grace_s=0.2)
    assert await run == -signal.SIGKILL
    assert "killed" in lines[-1][1]


async def test_child_stopped_during_its_start_exits() -> None:
    slow = child("import time; time.sleep(60)", [])
    run = asyncio.create_task(slow.run())
    await slow.stop(grace_s=1)
    assert await asyncio.wait_for(run, 10) == -signal.SIGTERM


def test_child_exits_with_its_parent(tmp_path: Path) -> None:
    program = (
        "import asyncio, os, sys\n"
        "from deploy.local.processes import Child\n"
        "sleep = [sys.executable, '-c', 'import os, time; print(os.getpid(), flush=True);"
        " time.sleep(60)']\n"
        "asyncio.run(Child('it', sleep, os.environ, lambda _, line: print(line, flush=True)).run())"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        parent.kill()
    until_now(lambda: not is_alive(pid), "the child's end", 10)


def test_python_children_import_nothing_of_their_working_directory(tmp_path: Path) -> None:
    (tmp_path / "redis.py").write_text("raise SystemExit('it was run')")
    (tmp_path / "deploy").mkdir()
    path = os.pathsep.join(["", ".", "relative", str(tmp_path / "given")])
    program = "import sys, redis, deploy.local.processes as ours; print(ours.__file__, *sys.path)"
    process = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=importing_atelier(os.environ | {"PYTHONPATH": path}),
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    file, *paths = process.stdout.split()
    assert Path(file) == IMPORT_ROOT / "deploy" / "local" / "processes.py"
    assert str(tmp_path / "given") in paths
    assert {"", ".", str(tmp_path), str(tmp_path / "relative")}.isdisjoint(paths)


def test_every_module_that_we_start_as_a_program_is_started_safely() -> None:
    """`python -m` puts the working directory first in the import path."""
    unsafe = re.compile(r'(?<!"-P", )"-m",')
    packages = ("deploy", "models", "service", "workers")
    sources = [path for package in packages for path in IMPORT_ROOT.glob(f"{package}/**/*.py")]
    assert [path for path in sources if unsafe.search(path.read_text("utf-8"))] == []


def test_endings_in_words() -> None:
    assert (ending(3), ending(-9)) == ("exit code 3", "killed by SIGKILL")
