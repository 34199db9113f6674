"""Confinement of child processes that read clients' files: Linux refuses unneeded calls and
files."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ACTS = {
    "connect": "import socket; socket.create_connection(('127.0.0.1', 9))",
    "bind": "import socket; socket.socket()",
    "start a program": "import os; os.execv('/bin/true', ['true'])",
    "start a process": "import os; os.fork()",
    "end a process": "import os; os.kill(os.getppid(), 0)",
    "delete a file": "import os; os.unlink('/nowhere')",
    "move a file": "import os; os.rename('/nowhere', '/elsewhere')",
    "change a mode": "import os; os.chmod('/nowhere', 0o777)",
}
PROGRAM = """
import ctypes, sys
sys.path.insert(0, {root!r})
from service.confined.confinement import refuse_calls, refuse_files
refuse_files()
assert refuse_calls()
try:
    {act}
except PermissionError:
    sys.exit(7)
"""


def has_landlock() -> bool:
    """Return whether this machine's Linux supports Landlock."""
    return ctypes.CDLL(None).syscall(444, None, 0, 1) > 0


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"),
    reason="only Linux refuses system calls",
)
@pytest.mark.parametrize("act", ACTS)
def test_what_no_file_needs_is_refused(act: str) -> None:
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
