"""docker-compose.yml with its variables filled in."""

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
    """Services by name, as `docker compose config` shows them."""
    result: dict[str, dict[str, Any]] = document(environment)["services"]
    for service in result.values():
        service["environment"] = _resolved(service.get("environment", {}), environment)
    return result


def document(environment: Mapping[str, str]) -> dict[str, Any]:
    result: dict[str, Any] = _filled(yaml.safe_load(FILE.read_text("utf-8")), environment)
    return result


def _filled(value: Any, environment: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {name: _filled(each, environment) for name, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, environment) for each in value]
    if isinstance(value, str):
        return _VARIABLE.sub(lambda match: environment.get(match[1]) or match[2], value)
    return value


def _resolved(declared: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Resolve variables without a value from the user's environment, and drop those it lacks."""
    values = {
        name: environment.get(name) if declared[name] is None else declared[name]
        for name in declared
    }
    return {name: value for name, value in values.items() if value is not None}


def variables() -> set[str]:
    """Names of variables that the file takes from its user's environment."""
    handed_on = {
        name
        for service in document({})["services"].values()
        for name, value in service.get("environment", {}).items()
        if value is None
    }
    return handed_on | {match[1] for match in _VARIABLE.finditer(FILE.read_text("utf-8"))}


def volumes(service: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Volumes as (volume or project path, path in the container, rw or ro)."""
    return [_volume(entry) for entry in service.get("volumes", ())]


def _volume(entry: str | Mapping[str, Any]) -> tuple[str, str, str]:
    if isinstance(entry, str):
        source, target, *mode = entry.split(":")
        return source, target, mode[0] if mode else "rw"
    return entry["source"], entry["target"], "ro" if entry.get("read_only") else "rw"


def builder(image: str) -> Mapping[str, Any]:
    """Return the build section of an image. Raises: ValueError: no service builds the image, or
    several do; Docker would then fail with "already exists"."""
    (build,) = [
        service["build"]
        for service in services({}).values()
        if service["image"] == image and "build" in service
    ]
    result: Mapping[str, Any] = build
    return result


def seconds(text: str) -> float:
    """Parse a duration: '1m30s' → 90."""
    parts = re.findall(r"(\d+)([smh])", text)
    return float(sum(int(number) * UNITS_S[unit] for number, unit in parts))


def is_path(source: str) -> bool:
    """Whether a mount's source is a host path, not a volume's name."""
    return source.startswith((".", "/"))


def host_path(source: str) -> Path:
    return (ROOT / source).resolve()
