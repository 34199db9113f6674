"""Helpers for the text encoders' configs: read known fields and check their numbers."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import Field, fields
from typing import Any, ClassVar, Protocol, runtime_checkable


@runtime_checkable
class Config(Protocol):
    """Type of any config dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


def known_fields(kind: type[Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Select the keys of a parsed `config.json` for which this class has fields."""
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in config.items() if name in names}


def check_numbers(network: str, config: Config) -> None:
    """Check the numbers in a text encoder's config.

    Raises: ValueError: an invalid size, epsilon or token id; names the field.
    """
    for field in fields(config):
        value = getattr(config, field.name)
        if field.name.endswith("_token_id"):
            if type(value) is not int:
                raise ValueError(f"{network} {field.name} must be an integer, not {value!r}")
        elif field.type == "int" and not (type(value) is int and value > 0):
            raise ValueError(f"{network} {field.name} must be a positive integer, not {value!r}")
        elif field.type == "float" and not _is_positive(value):
            raise ValueError(f"{network} {field.name} must be a positive number, not {value!r}")


def rope_theta(
    network: str, config: Mapping[str, Any], default: float, kinds: Collection[str] = ("default",)
) -> float:
    """Return the base of the positions' frequencies.

    transformers 4 writes `rope_theta` and `rope_scaling`, 5 both as `rope_parameters`.

    Args:
        kinds: supported values of `rope_type`.

    Raises: ValueError: another `rope_type`.
    """
    given = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    kind = given.get("rope_type", given.get("type", "default"))
    if kind not in kinds:
        raise ValueError(f"{network} rope_type must be {' or '.join(kinds)}, not {kind!r}")
    return float(given.get("rope_theta", config.get("rope_theta", default)))


def _is_positive(value: object) -> bool:
    return type(value) in (int, float) and 0 < value < math.inf  # type: ignore[operator]
