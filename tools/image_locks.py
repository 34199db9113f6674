"""`make locks`: what images and `make install` install, to the last package, each file by its hash.

An image's lock is one text for all the processors that it is built for: it is resolved for each,
from wheels alone, and made only where they agree. Its versions are those of `make install`
(tools/locks.py), which come first.
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
"""Python of the images' base: the newest that is tested."""
GLIBC = "manylinux_2_36"
"""glibc of the images' base, Debian 12."""
BOTH = ("x86_64", "aarch64")
LOCKS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "frontend": (("otel",), BOTH),
    "worker-cpu": (("cpu", "otel"), BOTH),
    "worker-cuda": (("cuda", "otel"), BOTH),
    "worker-tpu": (("tpu", "otel"), ("x86_64",)),  # libtpu has no other wheels
    "build": ((), BOTH),
}
"""Locks by name: the extras of pyproject.toml (none: what packs Atelier itself, which stays out of
the images), and the processors."""


class Disagreement(Exception):
    """Text can't serve all processors of an image."""


def main(found: Iterable[Entry]) -> int:
    """Write every lock of an image anew.

    Args:
        found: the versions to take.
    """
    every = list(found)
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
    """Raises: Disagreement."""
    resolved = {_resolved(extras, machine, versions) for machine in machines}
    if len(resolved) > 1:
        raise Disagreement(f"{name}: other packages for {' than for '.join(machines)}")
    return resolved.pop()


def _resolved(extras: tuple[str, ...], machine: str, versions: Iterable[Entry]) -> str:
    """Raises: CalledProcessError: no wheels fit; uv has said which."""
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
    """Return what pyproject.toml builds with."""
    system = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["build-system"]
    return list(system["requires"])


def _write(name: str, text: str, machines: tuple[str, ...]) -> None:
    head = f"# By `make locks`, for CPython {PYTHON} on Linux ({', '.join(machines)}).\n"
    lock_file(name).write_text(head + text)
    print(f"{name}: {text.count('==')} packages")
