"""`atelier tenants`: shares and quotas of tenants in the Redis of the settings."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from deploy.admin.api_keys import print_table, where
from deploy.admin.audited_actions import Act, at_redis, change_at_redis
from deploy.exit_codes import NotFound
from service.jobs.tenants import Records, TenantRecords
from service.settings.settings import Settings
from service.settings.tenants import TenantSettings

COLUMNS = ("TENANT", "FROM", "SETTINGS")
NONE = "none"
"""Value that resets a setting to its default."""
UNKNOWN = f"there is no such setting; there are {', '.join(TenantSettings.model_fields)}"
BARE = re.compile(r"[A-Za-z0-9_-]+")
"""TOML key that needs no quotes."""


def show(settings: Settings) -> None:
    """Print all tenants as a table. Raises: ConfigError: Redis is unreachable."""
    records = at_redis(settings, lambda redis: TenantRecords(redis).all())
    tenants = settings.tenants | records
    rows = (
        (name, "redis" if name in records else "settings", _in_a_line(tenants[name]))
        for name in sorted(tenants)
    )
    print_table(COLUMNS, *rows)


def change(settings: Settings, name: str, changes: Mapping[str, str], reason: str) -> None:
    """Change some settings of a tenant, and print all its settings.

    Args:
        changes: values as text, by setting; `NONE` resets a setting.

    Raises:
        ConfigError: Redis is unreachable.
        ValueError: unknown setting, invalid value, or invalid tenant name.
    """

    def act(records: Records) -> Records:
        if unknown := changes.keys() - TenantSettings.model_fields.keys():
            raise ValueError("; ".join(f"{name}.{key}: {UNKNOWN}" for key in sorted(unknown)))
        before = records.get(name) or settings.tenants.get(name) or TenantSettings()
        values = before.model_dump(exclude_unset=True) | dict(changes)
        given = {key: value for key, value in values.items() if value != NONE}
        return records | {name: _checked(name, given)}

    records = _changed(settings, Act("set tenant", name, reason, changes), act)
    print(f"{name}: {_in_a_line(records[name]) or 'no limits'}, on {where(settings)}")


def remove(settings: Settings, name: str, reason: str) -> None:
    """Remove a tenant's record. Raises: ConfigError. NotFound: no such record."""

    def act(records: Records) -> Records:
        if records.pop(name, None) is None:
            raise NotFound(f"there is no record of {name!r}; `atelier tenants list` shows all")
        return records

    _changed(settings, Act("remove tenant", name, reason), act)


def export(settings: Settings) -> None:
    """Print all records as TOML, for the settings file or `import_records`. Raises: ConfigError."""
    records = at_redis(settings, lambda redis: TenantRecords(redis).all())
    print("\n".join(_toml(records)))


def import_records(settings: Settings, text: str, replaces: bool, reason: str) -> None:
    """Import the tenants of a TOML text into Redis, replacing whole records.

    Args:
        replaces: whether to remove all other tenants.

    Raises:
        ConfigError: Redis is unreachable.
        ValueError: invalid TOML, no tenants, or an invalid tenant.
    """
    try:
        sections = tomllib.loads(text).get("tenants")
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"it is not TOML: {error}") from None
    if not isinstance(sections, dict):
        raise ValueError("it has no [tenants.NAME]")
    taken = {name: _checked(name, values) for name, values in sections.items()}
    details = {name: _in_a_line(tenant) for name, tenant in taken.items()}
    act = Act(f"{'replace' if replaces else 'import'} tenants", " ".join(taken), reason, details)
    _changed(settings, act, lambda records: taken if replaces else records | taken)
    print(f"{len(taken)} tenants, on {where(settings)}", file=sys.stderr)


def _changed(settings: Settings, act: Act, change: Callable[[Records], Records]) -> Records:
    return change_at_redis(settings, act, lambda redis: TenantRecords(redis).change(change))


def _checked(name: str, values: Any) -> TenantSettings:
    """Validate a tenant's settings of a command. Raises: ValueError: names the invalid ones."""
    try:
        return TenantSettings.model_validate(values)
    except ValidationError as error:
        raise ValueError("; ".join(_wrong(name, error))) from None


def _wrong(name: str, error: ValidationError) -> Iterator[str]:
    for item in error.errors():
        place = ".".join(str(part) for part in (name, *item["loc"]))
        is_unknown = item["type"] == "extra_forbidden"
        yield f"{place}: {UNKNOWN if is_unknown else item['msg']}"


def _values(tenant: TenantSettings) -> dict[str, Any]:
    return tenant.model_dump(exclude_unset=True, exclude_none=True)


def _in_a_line(tenant: TenantSettings) -> str:
    return " ".join(f"{key}={value}" for key, value in _values(tenant).items())


def _toml(records: Records) -> Iterator[str]:
    for name, tenant in sorted(records.items()):
        yield f"[tenants.{name if BARE.fullmatch(name) else json.dumps(name)}]"
        yield from (f"{key} = {json.dumps(value)}" for key, value in _values(tenant).items())
        yield ""
