"""Reader of lock files: pins, their hashes and which packages require them."""

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
"""Name under which uv lists this project as the requirer."""

_PIN = re.compile(r"^([\w.-]+)(?:\[[\w,-]+\])?==(\S+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})\b")


@dataclass(frozen=True)
class Pin:
    name: str
    version: Version
    hashes: frozenset[str]
    required_by: frozenset[str]
    """Packages that require this pin, or this project; empty if the list came without a name."""


def read(text: str) -> dict[str, Pin]:
    """Pins by canonical name. Raises: ValueError: a line pins nothing."""
    pins = {}
    for block in re.split(r"\n(?=\S)", text):
        if block.startswith("#"):
            continue
        match = _PIN.match(block)
        if not match:
            raise ValueError(f"no pin: {block.splitlines()[0]!r}")
        via = [line.strip(" #") for line in block.splitlines() if line.lstrip().startswith("#")]
        required_by = frozenset(name.removeprefix("via").strip() for name in via) - {""}
        name = canonicalize_name(match[1])
        pins[name] = Pin(name, Version(match[2]), frozenset(_HASH.findall(block)), required_by)
    return pins


def project_requirements(extras: tuple[str, ...]) -> Iterator[Requirement]:
    """Requirements of pyproject.toml: the dependencies and those of extras."""
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
    """List where a lock differs from the wanted requirements."""
    names = {canonicalize_name(requirement.name) for requirement in wanted}
    direct = {pin.name for pin in pins.values() if not pin.required_by or US in pin.required_by}
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
