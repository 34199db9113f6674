"""Lock files of container images, with hashes (`make locks`).

An image's lock is valid for all its processors: packages are resolved for each, from wheels only,
and must agree. Its versions are those of `make install` (tools/locks.py), which are locked first.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from tempfile import NamedTemporaryFile

from tools.packages import Entry, chosen

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "deploy" / "docker"
PYTHON = "3.13"
"""Python of the base image: the newest tested version."""
GLIBC = "manylinux_2_36"
"""glibc of the base image, Debian 12."""
BOTH = ("x86_64", "aarch64")
LOCKS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "frontend": (("otel",), BOTH),
    "worker-cpu": (("cpu", "otel"), BOTH),
    "worker-cuda": (("cuda", "otel"), BOTH),
    "worker-tpu": (("tpu", "otel"), ("x86_64",)),  # libtpu has wheels only for it
    "build": ((), BOTH),
}
"""Locks by name: extras of pyproject.toml, and processors. `build` has no extras: it has the tools
that package Atelier, and is not part of an image."""


class Disagreement(Exception):
    """Error if the resolved packages differ between an image's processors."""


def main(versions_of_all: Iterable[Entry]) -> int:
    """Write the locks of all images.

    Args:
        found: locked versions of `make install`.
    """
    every = list(versions_of_all)
    for name, (extras, machines) in LOCKS.items():
        versions = chosen(every, extras)
        _write(name, _agreed(name, extras, machines, versions), machines)
    return 0


def lock_file(name: str) -> Path:
    """Return the lock file of an image."""
    return FOLDER / f"{name}.lock"


def _agreed(
    name: str, extras: tuple[str, ...], machines: tuple[str, ...], versions: Iterable[Entry]
) -> str:
    """Return the lock's text for all processors. Raises: Disagreement."""
    resolved = {_resolved(extras, machine, versions) for machine in machines}
    if len(resolved) > 1:
        raise Disagreement(f"{name}: different packages for {' than for '.join(machines)}")
    return resolved.pop()


def _resolved(extras: tuple[str, ...], machine: str, versions: Iterable[Entry]) -> str:
    """Resolve one processor. Raises: CalledProcessError: no wheels fit; uv prints which."""
    with NamedTemporaryFile("w", suffix=".txt") as limits:
        limits.write("\n".join(entry.pin for entry in versions))
        limits.flush()
        text = _compiled(extras, machine, limits.name)
    return re.sub(rf"\n *#(?: via)? +-c {re.escape(limits.name)}(?=\n)", "", text)


def _compiled(extras: tuple[str, ...], machine: str, limits: str) -> str:
    options = (
        *(
            "--no-config",
            "--quiet",
            "--no-header",
            "--generate-hashes",
            "--only-binary",
            ":all:",
        ),
        *("--python-version", PYTHON, "--python-platform", f"{machine}-{GLIBC}"),
        *("--constraints", limits),
        *(f"--extra={extra}" for extra in extras),
    )
    command = [sys.executable, "-P", "-m", "uv", "pip", "compile", *options]
    return subprocess.run(
        [*command, "pyproject.toml" if extras else "-"],
        input=None if extras else "\n".join(build_requirements()),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout


def build_requirements() -> list[str]:
    """Return the build requirements of pyproject.toml."""
    system = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["build-system"]
    return list(system["requires"])


def _write(name: str, text: str, machines: tuple[str, ...]) -> None:
    head = f"# By `make locks`, for CPython {PYTHON} on Linux ({', '.join(machines)}).\n"
    lock_file(name).write_text(head + text)
    print(f"{name}: {text.count('==')} packages")
