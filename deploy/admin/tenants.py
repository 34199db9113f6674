"""`atelier tenants`: tenants' shares and quotas as data in the Redis of the settings."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from deploy.admin.acts import Act, at_redis, change_at_redis
from deploy.admin.api_keys import print_table, where
from deploy.exit_codes import NotThere
from service.jobs.tenants import Records, TenantRecords
from service.settings.settings import Settings
from service.settings.tenants import TenantSettings

COLUMNS = ("TENANT", "FROM", "SETTINGS")
NONE = "none"
"""Value that takes a setting away, so that its default is in force."""
UNKNOWN = f"there is no such setting; there are {', '.join(TenantSettings.model_fields)}"
BARE = re.compile(r"[A-Za-z0-9_-]+")
"""A key that TOML takes without quotes."""


def show(settings: Settings) -> None:
    """Print all tenants as a table. Raises: ConfigError: Redis is not there."""
    records = at_redis(settings, lambda redis: TenantRecords(redis).all())
    known = settings.tenants | records
    rows = (
        (name, "redis" if name in records else "settings", _in_a_line(known[name]))
        for name in sorted(known)
    )
    print_table(COLUMNS, *rows)


def change(settings: Settings, name: str, changes: Mapping[str, str], reason: str) -> None:
    """Change some settings of a tenant, the others stay; print what they are now.

    Args:
        changes: texts by setting; `NONE` takes one away.

    Raises:
        ConfigError: Redis is not there.
        ValueError: there is no such setting, or it has no such value; no name for a tenant.
    """

    def act(records: Records) -> Records:
        if unknown := changes.keys() - TenantSettings.model_fields.keys():
            raise ValueError("; ".join(f"{name}.{key}: {UNKNOWN}" for key in sorted(unknown)))
        before = records.get(name) or settings.tenants.get(name) or TenantSettings()
        values = before.model_dump(exclude_unset=True) | dict(changes)
        kept = {key: value for key, value in values.items() if value != NONE}
        return records | {name: _checked(name, kept)}

    records = _changed(settings, Act("set tenant", name, reason, changes), act)
    print(f"{name}: {_in_a_line(records[name]) or 'no limits'}, on {where(settings)}")


def remove(settings: Settings, name: str, reason: str) -> None:
    """Remove a tenant's record. Raises: ConfigError. NotThere: it has none."""

    def act(records: Records) -> Records:
        if records.pop(name, None) is None:
            raise NotThere(f"there is no record of {name!r}; `atelier tenants list` shows all")
        return records

    _changed(settings, Act("remove tenant", name, reason), act)


def export(settings: Settings) -> None:
    """Print all records as TOML, as the settings file and `take` have it. Raises: ConfigError."""
    records = at_redis(settings, lambda redis: TenantRecords(redis).all())
    print("\n".join(_toml(records)))


def take(settings: Settings, text: str, replaces: bool, reason: str) -> None:
    """Put the tenants of a TOML text into Redis, whole records at once.

    Args:
        replaces: tenants that it does not name are removed.

    Raises:
        ConfigError: Redis is not there.
        ValueError: it is no TOML, has no tenants, or one of them cannot be.
    """
    try:
        sections = tomllib.loads(text).get("tenants")
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"it is no TOML: {error}") from None
    if not isinstance(sections, dict):
        raise ValueError("it has no [tenants.NAME]")
    taken = {name: _checked(name, values) for name, values in sections.items()}
    details = {name: _in_a_line(one) for name, one in taken.items()}
    act = Act(f"{'replace' if replaces else 'import'} tenants", " ".join(taken), reason, details)
    _changed(settings, act, lambda records: taken if replaces else records | taken)
    print(f"{len(taken)} tenants, on {where(settings)}", file=sys.stderr)


def _changed(settings: Settings, act: Act, change: Callable[[Records], Records]) -> Records:
    return change_at_redis(settings, act, lambda redis: TenantRecords(redis).change(change))


def _checked(name: str, values: Any) -> TenantSettings:
    """Raises: ValueError: says which setting is wrong."""
    try:
        return TenantSettings.model_validate(values)
    except ValidationError as error:
        raise ValueError("; ".join(_wrong(name, error))) from None


def _wrong(name: str, error: ValidationError) -> Iterator[str]:
    for item in error.errors():
        place = ".".join(str(part) for part in (name, *item["loc"]))
        is_unknown = item["type"] == "extra_forbidden"
        yield f"{place}: {UNKNOWN if is_unknown else item['msg']}"


def _values(one: TenantSettings) -> dict[str, Any]:
    return one.model_dump(exclude_unset=True, exclude_none=True)


def _in_a_line(one: TenantSettings) -> str:
    return " ".join(f"{key}={value}" for key, value in _values(one).items())


def _toml(records: Records) -> Iterator[str]:
    for name, one in sorted(records.items()):
        yield f"[tenants.{name if BARE.fullmatch(name) else json.dumps(name)}]"
        yield from (f"{key} = {json.dumps(value)}" for key, value in _values(one).items())
        yield ""
