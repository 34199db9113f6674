"""`make locks`: lock deploy/packages.lock for every Python, then the images' packages.

All extras are resolved together, so that they are compatible, with markers where Pythons or
machines differ. Then each extra is resolved separately with these versions, to find its packages.
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
SEPARATE = ("tpu",)
"""Extras incompatible with the others: jax[tpu] pins a libtpu version, plans use the newest."""
PYTHONS = ("3.11", "3.12", "3.13")
GLIBC = images.GLIBC
MACHINES = {extra: images.BOTH for extra in EXTRAS} | {"tpu": ("x86_64",)}
"""Machines with wheels for an extra."""
NOWHERE = "sys_platform == 'none'"
NO_TORCH = f"torch ; {NOWHERE}"
"""Requirement that excludes torch. Tests need it, but the Makefile installs the suitable build,
since builds differ by gigabytes."""
HEAD = """\
# By `make locks`, for CPython {pythons} on Linux; `make install` takes what it needs of it. The
# last line of each entry says which extras of pyproject.toml it is for.
# What pyproject.toml asked for: {asked}
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Write all locks, with the newest versions that pyproject.toml allows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the versions that are locked")
    locked = entries(LOCK.read_text("utf-8")) if parser.parse_args(arguments).keep else []
    together = [extra for extra in EXTRAS if extra not in SEPARATE]
    common = resolved(together, [entry for entry in locked if {*entry.extras} - {*SEPARATE}])
    alone = {
        extra: resolved([extra], [*_without(common, "libtpu"), *_only(locked, extra)])
        for extra in SEPARATE
    }
    parts = {extra: resolved([extra], common) for extra in together} | alone
    parts |= {CORE: resolved([], common), BUILD: resolved_build(common)}
    merged_entries = merged(parts)
    check(merged_entries)
    LOCK.write_text(written(merged_entries))
    print(f"{LOCK.name}: {len(merged_entries)} packages")
    return images.main(merged_entries)


def resolved(extras: Sequence[str], constraints: Iterable[Entry] = ()) -> list[Entry]:
    """Resolve these extras on every Python. Raises: CalledProcessError: uv prints why."""
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
    compiled = entries(_with_ends(done.stdout))
    return [entry for entry in compiled if NOWHERE not in entry.pin]


def _with_ends(text: str) -> str:
    """Append the line of extras to each entry of uv's output."""
    return re.sub(r"(--hash=\S+)\n(?!    --hash)", rf"\1\n{FOR}unassigned\n", text)


def _without(locked: Iterable[Entry], name: str) -> list[Entry]:
    return [entry for entry in locked if not entry.pin.startswith(f"{name}==")]


def _only(locked: Iterable[Entry], extra: str) -> list[Entry]:
    return [entry for entry in locked if entry.extras == (extra,)]


def merged(parts: Mapping[str, Iterable[Entry]]) -> list[Entry]:
    """Merge entries by pin, and collect their extras."""
    by_pin: dict[str, Entry] = {}
    for extra, items in parts.items():
        for entry in items:
            before = by_pin[entry.pin].extras if entry.pin in by_pin else ()
            by_pin[entry.pin] = entry._replace(extras=(*before, extra))
    return [by_pin[pin] for pin in sorted(by_pin)]


def written(merged_entries: Iterable[Entry]) -> str:
    """Return the text of deploy/packages.lock."""
    every = "".join(f"{entry}\n{FOR}{' '.join(sorted(entry.extras))}\n" for entry in merged_entries)
    return HEAD.format(pythons=", ".join(PYTHONS), asked=digest(PROJECT)) + every


def digest(project: Mapping[str, Any]) -> str:
    """Return a digest of all requirements in a pyproject.toml."""
    table = project["project"]
    every = (table["dependencies"], table["optional-dependencies"], project["build-system"])
    return sha256(json.dumps(every, sort_keys=True).encode()).hexdigest()


def check(merged_entries: Sequence[Entry]) -> None:
    """Verify that wheels of all packages exist, for every Python and machine.

    Raises: CalledProcessError: one is missing; uv prints which.
    """
    with TemporaryDirectory() as folder:
        for extra, machines in MACHINES.items():
            listed = Path(folder, extra)
            listed.write_text("\n".join(map(str, chosen(merged_entries, [extra]))))
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
