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
LOCKS: dict[str, tuple[str | None, tuple[str, ...]]] = {
    "frontend": ("", BOTH),
    "worker-cpu": ("cpu", BOTH),
    "worker-cuda": ("cuda", BOTH),
    "worker-tpu": ("tpu", ("x86_64",)),  # libtpu has no other wheels
    "build": (None, BOTH),
}
"""By name: the extra of pyproject.toml (None: what packs Atelier itself, which stays out of the
images), and the processors."""


class Disagreement(Exception):
    """One text can't serve all processors of an image."""


def main() -> int:
    """Write every lock anew."""
    for name, (extra, machines) in LOCKS.items():
        _write(name, _agreed(name, extra, machines), machines)
    return 0


def lock_file(name: str) -> Path:
    return FOLDER / f"{name}.lock"


def _agreed(name: str, extra: str | None, machines: tuple[str, ...]) -> str:
    """Raises: Disagreement."""
    resolved = {_resolved(extra, machine) for machine in machines}
    if len(resolved) > 1:
        raise Disagreement(f"{name}: other packages for {' than for '.join(machines)}")
    return resolved.pop()


def _resolved(extra: str | None, machine: str) -> str:
    """Raises: CalledProcessError: no wheels fit; uv has said which."""
    options = (
        *("--no-config", "--quiet", "--no-header", "--generate-hashes", "--only-binary", ":all:"),
        *("--python-version", PYTHON, "--python-platform", f"{machine}-{GLIBC}"),
        *(("--extra", extra) if extra else ()),
    )
    command = [sys.executable, "-m", "uv", "pip", "compile", *options]
    return subprocess.run(
        [*command, "-" if extra is None else "pyproject.toml"],
        input="\n".join(build_requirements()) if extra is None else None,
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
