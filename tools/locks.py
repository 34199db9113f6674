"""`make locks`: deploy/packages.lock, for every Python, and then the images' locks from it.

All extras are resolved at once, so that those installed together agree, with markers where Pythons
or machines differ; then each by itself with the versions found, which says what it is made of.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tools import image_locks as images
from tools.packages import BUILD, CORE, FOR, LOCK, Entry, chosen, entries

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
EXTRAS = tuple(PROJECT["project"]["optional-dependencies"])
APART = ("tpu",)
"""Extras that no other agrees with: jax[tpu] wants a libtpu of its own, plans the newest one."""
PYTHONS = ("3.11", "3.12", "3.13")
GLIBC = images.GLIBC
MACHINES = {extra: images.BOTH for extra in EXTRAS} | {"tpu": ("x86_64",)}
"""Machines that an extra has wheels for."""
NOWHERE = "sys_platform == 'none'"
NO_TORCH = f"torch ; {NOWHERE}"
"""Tests want it; which build of it is the Makefile's business, as it differs by gigabytes."""
HEAD = """\
# By `make locks`, for CPython {pythons} on Linux; `make install` takes what it needs of it. The
# last line of each entry says which extras of pyproject.toml it is for.
# What pyproject.toml asked for: {asked}
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Write every lock anew: the newest versions that pyproject.toml allows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the versions that are locked")
    locked = entries(LOCK.read_text("utf-8")) if parser.parse_args(arguments).keep else []
    together = [extra for extra in EXTRAS if extra not in APART]
    whole = resolved(together, [entry for entry in locked if {*entry.extras} - {*APART}])
    alone = {
        extra: resolved([extra], [*_without(whole, "libtpu"), *_only(locked, extra)])
        for extra in APART
    }
    parts = {extra: resolved([extra], whole) for extra in together} | alone
    parts |= {CORE: resolved([], whole), BUILD: resolved_build(whole)}
    found = merged(parts)
    check(found)
    LOCK.write_text(written(found))
    print(f"{LOCK.name}: {len(found)} packages")
    return images.main(found)


def resolved(extras: Sequence[str], constraints: Iterable[Entry] = ()) -> list[Entry]:
    """Resolve these extras on every Python. Raises: CalledProcessError: uv says why."""
    return _compiled("pyproject.toml", [f"--extra={extra}" for extra in extras], constraints)


def resolved_build(constraints: Iterable[Entry]) -> list[Entry]:
    """Resolve the build requirements of Atelier itself."""
    return _compiled("-", [], constraints, "\n".join(PROJECT["build-system"]["requires"]))


def _compiled(
    source: str, options: Sequence[str], constraints: Iterable[Entry], text: str = ""
) -> list[Entry]:
    with TemporaryDirectory() as folder:
        limits, without = Path(folder, "limits"), Path(folder, "without")
        limits.write_text("\n".join(entry.pin for entry in constraints))
        without.write_text(NO_TORCH)
        command = (
            *(sys.executable, "-P", "-m", "uv", "pip", "compile", source, *options, "--no-config"),
            *("--quiet", "--no-header", "--no-annotate", "--generate-hashes", "--universal"),
            *("--python-version", PYTHONS[0], "--constraints", str(limits)),
            *("--overrides", str(without)),
        )
        done = subprocess.run(
            command, input=text, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
        )
    found = entries(_with_ends(done.stdout))
    return [entry for entry in found if NOWHERE not in entry.pin]


def _with_ends(text: str) -> str:
    """Convert uv's output: end each entry with the line that names its extras."""
    return re.sub(r"(--hash=\S+)\n(?!    --hash)", rf"\1\n{FOR}nobody\n", text)


def _without(found: Iterable[Entry], name: str) -> list[Entry]:
    return [entry for entry in found if not entry.pin.startswith(f"{name}==")]


def _only(found: Iterable[Entry], extra: str) -> list[Entry]:
    return [entry for entry in found if entry.extras == (extra,)]


def merged(parts: Mapping[str, Iterable[Entry]]) -> list[Entry]:
    """Merge pins into one each, with the extras that it is for."""
    found: dict[str, Entry] = {}
    for extra, some in parts.items():
        for entry in some:
            before = found[entry.pin].extras if entry.pin in found else ()
            found[entry.pin] = entry._replace(extras=(*before, extra))
    return [found[pin] for pin in sorted(found)]


def written(found: Iterable[Entry]) -> str:
    """Return the lock as text."""
    every = "".join(f"{entry}\n{FOR}{' '.join(sorted(entry.extras))}\n" for entry in found)
    return HEAD.format(pythons=", ".join(PYTHONS), asked=digest(PROJECT)) + every


def digest(project: Mapping[str, Any]) -> str:
    """Digest of all requirements in a pyproject.toml."""
    asked = project["project"]
    every = (asked["dependencies"], asked["optional-dependencies"], project["build-system"])
    return sha256(json.dumps(every, sort_keys=True).encode()).hexdigest()


def check(found: Sequence[Entry]) -> None:
    """Check that there are wheels of everything, for every Python and machine.

    Raises: CalledProcessError: there are not; uv has said of what.
    """
    with TemporaryDirectory() as folder:
        for extra, machines in MACHINES.items():
            listed = Path(folder, extra)
            listed.write_text("\n".join(map(str, chosen(found, [extra]))))
            for python in PYTHONS:
                for machine in machines:
                    _check(listed, python, f"{machine}-{GLIBC}", Path(folder, "nowhere"))


def _check(listed: Path, python: str, platform: str, target: Path) -> None:
    print(f"  {listed.name} on Python {python}, {platform}", flush=True)
    subprocess.run(
        (
            *(sys.executable, "-P", "-m", "uv", "pip", "install", "--dry-run", "--quiet"),
            *(
                "--no-config",
                "--no-deps",
                "--require-hashes",
                "--only-binary",
                ":all:",
                "--target",
                str(target),
            ),
            *("--python-version", python, "--python-platform", platform),
            *("--requirement", str(listed)),
        ),
        check=True,
    )


if __name__ == "__main__":
    sys.exit(main())
