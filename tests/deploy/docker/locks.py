"""Lock files, read: what they pin, by which hashes, and for whom."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.deploy.docker.dockerfile import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
US = "atelier (pyproject.toml)"
"""How uv calls who asked for it."""

_PIN = re.compile(r"^([\w.-]+)(?:\[[\w,-]+\])?==(\S+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})\b")


@dataclass(frozen=True)
class Pin:
    name: str
    version: Version
    hashes: frozenset[str]
    wanted_by: frozenset[str]
    """Other packages, or us; nobody where the list came without a name."""


def read(text: str) -> dict[str, Pin]:
    """By canonical name. Raises: ValueError: a line that pins nothing."""
    pins = {}
    for block in re.split(r"\n(?=\S)", text):
        if block.startswith("#"):
            continue
        found = _PIN.match(block)
        if not found:
            raise ValueError(f"no pin: {block.splitlines()[0]!r}")
        via = [line.strip(" #") for line in block.splitlines() if line.lstrip().startswith("#")]
        wanted = frozenset(name.removeprefix("via").strip() for name in via) - {""}
        name = canonicalize_name(found[1])
        pins[name] = Pin(name, Version(found[2]), frozenset(_HASH.findall(block)), wanted)
    return pins


def asked(extras: tuple[str, ...]) -> Iterator[Requirement]:
    """What pyproject.toml asks for: its dependencies, and those of extras."""
    yield from map(Requirement, PROJECT["dependencies"])
    for extra in extras:
        yield from _of_extra(extra)


def _of_extra(extra: str) -> Iterator[Requirement]:
    for requirement in map(Requirement, PROJECT["optional-dependencies"][extra]):
        if requirement.name == PROJECT["name"]:
            for other in requirement.extras:
                yield from _of_extra(other)
        else:
            yield requirement


def faults(pins: dict[str, Pin], wanted: list[Requirement]) -> list[str]:
    """Where a lock is not true to what is asked for."""
    names = {canonicalize_name(requirement.name) for requirement in wanted}
    direct = {pin.name for pin in pins.values() if not pin.wanted_by or US in pin.wanted_by}
    return [
        *(f"{name} is not asked for any more" for name in sorted(direct - names)),
        *(f"{name} is missing" for name in sorted(names - direct)),
        *(
            f"{requirement} is pinned to {pins[name].version}"
            for requirement in wanted
            if (name := canonicalize_name(requirement.name)) in pins
            and not requirement.specifier.contains(pins[name].version)
        ),
        *(f"{pin.name} has no hash" for pin in pins.values() if not pin.hashes),
    ]
