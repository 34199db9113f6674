"""`make locks`: what the images install, to the last package, each file of it by its hash.

A lock is one text for all the processors that its image is built for: it is resolved for each, from
wheels alone, and made only where they agree.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).resolve().parent
PYTHON = "3.11"
"""Of the images' base, and of the tests."""
GLIBC = "manylinux_2_36"
"""Of the images' base: Debian 12."""
BOTH = ("x86_64", "aarch64")
LOCKS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "frontend": (("otel",), BOTH),
    "worker-cpu": (("cpu", "otel"), BOTH),
    "worker-cuda": (("cuda", "otel"), BOTH),
    "worker-tpu": (("tpu", "otel"), ("x86_64",)),  # libtpu has no other wheels
    "build": ((), BOTH),
}
"""By name: the extras of pyproject.toml (none: what packs Atelier itself, which stays out of the
images), and the processors."""


class Disagreement(Exception):
    """One text can't serve all processors of an image."""


def main() -> int:
    """Write every lock anew."""
    for name, (extras, machines) in LOCKS.items():
        _write(name, _agreed(name, extras, machines), machines)
    return 0


def lock_file(name: str) -> Path:
    return FOLDER / f"{name}.lock"


def _agreed(name: str, extras: tuple[str, ...], machines: tuple[str, ...]) -> str:
    """Raises: Disagreement."""
    resolved = {_resolved(extras, machine) for machine in machines}
    if len(resolved) > 1:
        raise Disagreement(f"{name}: other packages for {' than for '.join(machines)}")
    return resolved.pop()


def _resolved(extras: tuple[str, ...], machine: str) -> str:
    """Raises: CalledProcessError: no wheels fit; uv has said which."""
    options = (
        *("--no-config", "--quiet", "--no-header", "--generate-hashes", "--only-binary", ":all:"),
        *("--python-version", PYTHON, "--python-platform", f"{machine}-{GLIBC}"),
        *(f"--extra={extra}" for extra in extras),
    )
    command = [sys.executable, "-m", "uv", "pip", "compile", *options]
    return subprocess.run(
        [*command, "pyproject.toml" if extras else "-"],
        input=None if extras else "\n".join(build_requirements()),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout


def build_requirements() -> list[str]:
    """What pyproject.toml builds with."""
    system = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["build-system"]
    return list(system["requires"])


def _write(name: str, text: str, machines: tuple[str, ...]) -> None:
    head = f"# By `make locks`, for CPython {PYTHON} on Linux ({', '.join(machines)}).\n"
    lock_file(name).write_text(head + text)
    print(f"{name}: {text.count('==')} packages")


if __name__ == "__main__":
    sys.exit(main())
