"""docker-compose.yml, with its variables filled in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.docker.dockerfile import ROOT

FILE = ROOT / "docker-compose.yml"
UNITS_S = {"s": 1, "m": 60, "h": 3600}

_VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")


def services(environment: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """By name, as `docker compose config` would show them."""
    found: dict[str, dict[str, Any]] = document(environment)["services"]
    for service in found.values():
        service["environment"] = _resolved(service.get("environment", {}), environment)
    return found


def document(environment: Mapping[str, str]) -> dict[str, Any]:
    whole: dict[str, Any] = _filled(yaml.safe_load(FILE.read_text("utf-8")), environment)
    return whole


def _filled(value: Any, environment: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {name: _filled(each, environment) for name, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, environment) for each in value]
    if isinstance(value, str):
        return _VARIABLE.sub(lambda found: environment.get(found[1]) or found[2], value)
    return value


def _resolved(told: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """A name without a value has the user's; where the user has none it is not there."""
    whole = {name: environment.get(name) if told[name] is None else told[name] for name in told}
    return {name: value for name, value in whole.items() if value is not None}


def variables() -> set[str]:
    """Names that the file takes from its user's environment."""
    handed_on = {
        name
        for service in document({})["services"].values()
        for name, value in service.get("environment", {}).items()
        if value is None
    }
    return handed_on | {found[1] for found in _VARIABLE.finditer(FILE.read_text("utf-8"))}


def volumes(service: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Volume or path of the project, place in the container, and rw or ro."""
    return [_volume(entry) for entry in service.get("volumes", ())]


def _volume(entry: str | Mapping[str, Any]) -> tuple[str, str, str]:
    if isinstance(entry, str):
        source, target, *how = entry.split(":")
        return source, target, how[0] if how else "rw"
    return entry["source"], entry["target"], "ro" if entry.get("read_only") else "rw"


def builder(image: str) -> Mapping[str, Any]:
    """How the file builds an image. Raises: ValueError: no service does, or several do, of which
    all but the first to end would fail with "already exists"."""
    (build,) = [
        service["build"]
        for service in services({}).values()
        if service["image"] == image and "build" in service
    ]
    found: Mapping[str, Any] = build
    return found


def seconds(text: str) -> float:
    """'1m30s' → 90."""
    parts = re.findall(r"(\d+)([smh])", text)
    return float(sum(int(number) * UNITS_S[unit] for number, unit in parts))


def is_path(source: str) -> bool:
    """Whether a volume is a place of the host, and no volume's name."""
    return source.startswith((".", "/"))


def host_path(source: str) -> Path:
    return (ROOT / source).resolve()
