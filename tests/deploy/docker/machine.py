"""Stand-in for a base image and its engine: a root folder with this machine's programs mounted
read-only, in which commands run as in a container. Needs Linux and root, but no Docker."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

import pip

from tests.pythons import interpreter
from tools import image_locks

INSIDE = Path(__file__).with_name("inside.py")
PYTHON = interpreter(image_locks.PYTHON)
"""This machine's interpreter of the images' Python version, outside any virtual environment."""
PATH = "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
FOLDERS = ("dev/shm", "etc", "opt", "proc", "root", "run", "usr", "var/lib", "var/cache")
FROM_HOST = ("/etc/ssl", "/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf", "/etc/ld.so.cache")
"""Files needed to reach a package index."""
DEVICES = ("null", "zero", "random", "urandom")
LOCAL, PIP = ".local", ".pip"
"""Folders of the stand-in that are mounted over the host's."""

Mount = tuple[str, str, str]
"""Source, target and mode: rw, ro or tmpfs."""


@dataclass(frozen=True)
class Machine:
    """A root folder and the environment in which commands run in it."""

    root: Path
    environment: Mapping[str, str] = field(default_factory=lambda: {"PATH": PATH})
    workdir: str = "/"
    user: int = 0
    network: int | None = None
    """Process whose network namespace is joined; None for the host's."""

    @classmethod
    def base(cls, root: Path) -> Machine:
        """Create a root like python:3.13-slim: the interpreter with pip, and Debian's programs."""
        for name in (*FOLDERS, f"{LOCAL}/bin", PIP):
            (root / name).mkdir(parents=True)
        (root / "tmp").mkdir()
        (root / "tmp").chmod(0o1777)
        for name in ("bin", "sbin", "lib", "lib64"):
            (root / name).symlink_to(f"usr/{name}")
        for device in DEVICES:
            (root / "dev" / device).touch()
        (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
        (root / "etc/group").write_text("root:x:0:\n")
        for source in map(Path, filter(os.path.exists, FROM_HOST)):
            _copy(source, root / source.relative_to("/"))
        _copy(_pip(), root / PIP / "pip")
        for name in ("python", "python3"):
            (root / LOCAL / "bin" / name).symlink_to(PYTHON)
        return cls(root)

    def copy(self, root: Path) -> Machine:
        """Copy to another folder with hard links, so files are shared until they are replaced."""
        shutil.copytree(self.root, root, symlinks=True, copy_function=link)
        return replace(self, root=root)

    def start(
        self,
        *command: str,
        mounts: Sequence[Mount] = (),
        read_only: bool = False,
        output: IO[str] | int | None = None,
    ) -> subprocess.Popen[str]:
        """Start a command in new namespaces; killing it ends all of its processes."""
        order = {
            "root": str(self.root),
            "mounts": [*_host(self.root), *mounts],
            "read_only": read_only,
            "workdir": self.workdir,
            "user": self.user,
            "command": command,
            "environment": dict(self.environment),
        }
        joined = ["nsenter", f"--net=/proc/{self.network}/ns/net"] if self.network else []
        isolated = [*joined, "unshare", "--mount", "--pid", "--fork", "--kill-child"]
        inside = [str(PYTHON), "-I", str(INSIDE), json.dumps(order)]
        return subprocess.Popen(
            [*isolated, *inside], text=True, stdout=output, stderr=subprocess.STDOUT
        )

    def run(
        self, *command: str, mounts: Sequence[Mount] = (), read_only: bool = False
    ) -> tuple[int, str]:
        """Run a command to its end; returns its exit code and output."""
        process = self.start(*command, mounts=mounts, read_only=read_only, output=subprocess.PIPE)
        output, _ = process.communicate()
        return process.returncode, output


def link(source: str, target: str) -> None:
    """Hard-link a file."""
    os.link(source, target, follow_symlinks=False)


def _host(root: Path) -> list[Mount]:
    """Mounts of this machine's programs, interpreter and devices, with pip as the only Python
    package."""
    prefix, version = str(PYTHON.parents[1]), f"python{image_locks.PYTHON}"
    mounts = [("/usr", "/usr", "ro")]
    if prefix == "/usr":  # Debian's interpreter searches this folder for packages
        mounts.append((str(root / LOCAL), "/usr/local", "ro"))
        packages = f"/usr/local/lib/{version}/dist-packages"
        (root / LOCAL / "lib" / version / "dist-packages").mkdir(parents=True, exist_ok=True)
    else:  # other interpreters find their libraries by their original path
        mounts += [(prefix, prefix, "ro"), (prefix, "/usr/local", "ro")]
        packages = f"/usr/local/lib/{version}/site-packages"
        (root / prefix.lstrip("/")).mkdir(parents=True, exist_ok=True)
    mounts.append((str(root / PIP), packages, "ro"))
    mounts += [(f"/dev/{name}", f"/dev/{name}", "rw") for name in DEVICES]
    return [*mounts, ("", "/dev/shm", "tmpfs")]


def _pip() -> Path:
    """Folder of pip: the interpreter's, or (Debian's lacks pip) this environment's."""
    command = [str(PYTHON), "-I", "-c", "import pip; print(pip.__file__)"]
    path = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    return Path(path or pip.__file__).parent


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore_dangling_symlinks=True)
    else:
        shutil.copy(source, target)
