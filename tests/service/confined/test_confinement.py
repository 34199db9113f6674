"""Confinement of child processes that read clients' files: Linux refuses unneeded calls and
files."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest

from service.confined.confinement import environment
from service.http import image_checks, lora_checks
from service.settings.installation import IMPORT_ROOT
from workers.media import input_videos

ROOT = Path(__file__).parents[3]
ACTS = {
    "connect": "import socket; socket.create_connection(('127.0.0.1', 9))",
    "bind": "import socket; socket.socket()",
    "open a local socket": "import socket; socket.socketpair()",
    "send over a socket that is open": "import socket; connected.sendmsg([b'a'])",
    "start a program": "import os; os.execv('/bin/true', ['true'])",
    "start a process": "import os; os.fork()",
    "end a process": "import os; os.kill(os.getppid(), 0)",
    "limit a process": "import os, resource; resource.prlimit(os.getppid(), 7)",
    "delete a file": "import os; os.unlink('/nowhere')",
    "move a file": "import os; os.rename('/nowhere', '/elsewhere')",
    "change a mode": "import os; os.chmod('/nowhere', 0o777)",
    "change a mode by fchmodat2": (
        "if ctypes.CDLL(None, use_errno=True).syscall(452, -100, b'/', 0o755, 0) and"
        " ctypes.get_errno() == 1: raise PermissionError"
    ),
    "act in a thread that has begun": "earlier.set(); later.wait(); raise failures[0]",
}
PROGRAM = """
import ctypes, socket, sys, threading
connected, other = socket.socketpair()
earlier, later, failures = threading.Event(), threading.Event(), []
def connect():
    earlier.wait()
    try:
        socket.socket()
    except OSError as error:
        failures.append(error)
    later.set()
threading.Thread(target=connect, daemon=True).start()
sys.path.insert(0, {root!r})
from service.confined.confinement import refuse_calls, refuse_files
refuse_files()
assert refuse_calls()
try:
    {act}
except PermissionError:
    sys.exit(7)
"""


LIMITS = ("1000000", "1", "1")
PROGRAMS = {
    image_checks.PROGRAM: LIMITS,
    lora_checks.PROGRAM: ("0", "", "60", "64"),
    input_videos.PROGRAM: LIMITS[:2],
}
"""Arguments of the programs that read clients' files."""
ON_LINUX = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"),
    reason="only Linux refuses system calls",
)


def has_landlock() -> bool:
    """Return whether this machine's Linux supports Landlock."""
    return ctypes.CDLL(None).syscall(444, None, 0, 1) > 0


@ON_LINUX
@pytest.mark.parametrize("act", ACTS)
def test_unneeded_system_calls_are_rejected(act: str) -> None:
    program = PROGRAM.format(root=str(ROOT), act=ACTS[act])
    assert subprocess.run([sys.executable, "-I", "-c", program]).returncode == 7


@pytest.mark.skipif(not has_landlock(), reason="only Linux from 5.13 on refuses files")
@pytest.mark.parametrize(
    "act",
    [
        "open('/etc/passwd')",
        "import os; os.listdir('/')",
        "open('/proc/self/environ')",
        "open({ours!r})",
    ],
)
def test_other_files_are_refused(act: str, tmp_path: Path) -> None:
    forbidden = tmp_path / "ours"
    forbidden.touch()
    program = PROGRAM.format(root=str(ROOT), act=act.format(ours=str(forbidden)))
    assert subprocess.run([sys.executable, "-I", "-c", program]).returncode == 7


def test_threads_still_start_and_modules_are_imported() -> None:
    act = "import threading, av; threading.Thread(target=lambda: open(av.__file__)).start()"
    program = PROGRAM.format(root=str(ROOT), act=act)
    assert subprocess.run([sys.executable, "-I", "-c", program]).returncode == 0


@ON_LINUX
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_programs_are_confined_in_their_only_thread(program: Path) -> None:
    """Before they read their input. Landlock would not confine other threads that have begun."""
    command = [sys.executable, "-I", str(program), str(IMPORT_ROOT), *PROGRAMS[program]]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()
    ) as child:
        try:
            status = Path(f"/proc/{child.pid}/status")
            deadline = time.monotonic() + 60
            while "Seccomp:\t2" not in status.read_text() and time.monotonic() < deadline:
                assert child.poll() is None
            threads = list(Path(f"/proc/{child.pid}/task").iterdir())
            confined = status.read_text()
        finally:
            child.kill()
    assert len(threads) == 1
    assert "NoNewPrivs:\t1" in confined
