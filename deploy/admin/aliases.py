"""`atelier aliases`: aliases of models, with weighted versions, in the Redis of the settings."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError
from redis.asyncio import Redis

from deploy.admin.api_keys import created, print_table, where
from deploy.admin.audited_actions import Act, at_redis, change_at_redis
from deploy.exit_codes import NotFound
from service.jobs.aliases import AliasJobs, AliasRecords
from service.jobs.model.alias import Alias, full_name
from service.jobs.queue import Depth, ModelStatus, Queue
from service.settings.settings import Settings

COLUMNS = ("ALIAS", "VERSION", "WEIGHT", "POOLS", "QUEUED", "RUNNING", "NOTES")
NONE = "none"
"""Value that resets an option to its default."""
NOT_REGISTERED = "not registered"
NAMES = ("shadow", "baseline")
"""Options whose value is a version."""
Records = dict[str, Alias]
Change = Callable[[Records, float], Records]
"""Function that changes all aliases at once, given the current time."""
VALUE_ERROR = "Value error, "
"""Pydantic's prefix of a validator's message."""


def show(settings: Settings) -> None:
    """Print all model aliases with their versions as a table. Raises: ConfigError."""

    async def read(redis: Any) -> tuple[Records, dict[str, ModelStatus], dict[str, Depth]]:
        queue = Queue(redis, settings.queue)
        return await AliasRecords(redis).all(), await queue.models(), await queue.depths()

    print_table(COLUMNS, *_rows(*at_redis(settings, read)))


def _rows(
    records: Records, models: Mapping[str, ModelStatus], depths: Mapping[str, Depth]
) -> Iterator[tuple[str, ...]]:
    served = {variant.name: name for name, s in models.items() for variant in s.spec.variants()}
    for name, alias in sorted(records.items()):
        versions = [*alias.weights, *({alias.shadow} - {None, *alias.weights})]
        for version in versions:
            queue = served.get(version or "", version or "")
            status, depth = models.get(queue), depths.get(queue)
            state = f"{len(status.pools)} {_state(status)}" if status else NOT_REGISTERED
            queued = (str(depth.queued), str(depth.running)) if depth else ("-", "-")
            weight = f"{alias.weights.get(version or '', 0):g}"
            yield name, str(version), weight, state, *queued, _notes(alias, str(version))


def _state(status: ModelStatus) -> str:
    return "ready" if status.ready else "not ready"


def _notes(alias: Alias, version: str) -> str:
    notes = []
    if version == alias.baseline:
        notes.append("baseline")
    if version == alias.shadow:
        notes.append(f"shadow of {alias.shadow_share:.2%}")
    if back := alias.stepped_back.get(version):
        notes.append(f"stepped back at {created(back.at)}: {back.reason}")
    return "; ".join(notes) or "-"


def change(
    settings: Settings,
    name: str,
    weights: Mapping[str, str],
    options: Mapping[str, str],
    reason: str,
) -> None:
    """Set an alias's weights, if given, and change some of its options; print the result.

    A version that was stepped back and gets a weight is monitored again.

    Args:
        weights: weights as text, by version; they replace all existing ones.
        options: values as text, by field of `Alias`; `NONE` resets an option.

    Raises:
        ConfigError: Redis is unreachable.
        ValueError: the alias would be invalid; states why.
    """

    def act(records: Records, now: float) -> Records:
        before = records[name].model_dump(exclude_unset=True) if name in records else {}
        chosen = {full_name(name, version): weight for version, weight in weights.items()}
        values = before | _options(name, options) | ({"weights": chosen} if chosen else {})
        if not values.get("weights"):
            raise ValueError(f"there is no alias {name!r} yet: give its versions and weights")
        if chosen:
            values["since"] = now
            values["stepped_back"] = {
                version: back
                for version, back in before.get("stepped_back", {}).items()
                if version in chosen and not _is_positive(chosen[version])
            }
        given = {key: value for key, value in values.items() if value != NONE}
        return records | {name: _checked(name, given)}

    records = _changed(settings, Act("set alias", name, reason, {**weights, **options}), act)
    print(f"{name}: {_in_a_line(records[name])}, on {where(settings)}")


def remove(settings: Settings, name: str, reason: str) -> None:
    """Remove a model alias. Raises: ConfigError. NotFound: no such alias."""

    def act(records: Records, now: float) -> Records:
        if records.pop(name, None) is None:
            raise NotFound(f"there is no alias {name!r}; `atelier aliases list` shows all")
        return records

    _changed(settings, Act("remove alias", name, reason), act)


def export(settings: Settings) -> None:
    """Print all model aliases as JSON lines, the input of `import_records`. Raises: ConfigError."""
    for name, alias in sorted(at_redis(settings, lambda redis: AliasRecords(redis).all()).items()):
        print(json.dumps({"name": name, **alias.model_dump(mode="json", exclude_unset=True)}))


def import_records(settings: Settings, text: str, reason: str) -> None:
    """Import aliases printed by `export` into Redis, replacing whole records.

    Raises:
        ConfigError: Redis is unreachable.
        ValueError: a line is invalid or repeats a name; then none is imported.
    """
    taken: Records = {}
    for number, line in enumerate((line for line in text.splitlines() if line.strip()), 1):
        name, alias = _parsed_line(number, line)
        if name in taken:
            raise ValueError(f"line {number} is the second one of {name!r}: leave one of them")
        taken[name] = alias
    details = {name: _in_a_line(alias) for name, alias in taken.items()}
    act = Act("import aliases", " ".join(taken), reason, details)
    _changed(settings, act, lambda records, now: records | taken)
    print(f"{len(taken)} aliases, on {where(settings)}", file=sys.stderr)


def _parsed_line(number: int, line: str) -> tuple[str, Alias]:
    """Parse a line of `atelier aliases export`. Raises: ValueError."""
    try:
        values = json.loads(line)
        return str(values.pop("name")), Alias.model_validate(values)
    except (ValueError, LookupError, AttributeError, TypeError):
        message = f"line {number} is no alias as `atelier aliases export` prints it"
        raise ValueError(message) from None


def _changed(settings: Settings, act: Act, change: Change) -> Records:
    """Apply a change to all model aliases at once; it receives the time of Redis's clock."""

    async def run(redis: Redis) -> Records:
        now = await AliasJobs(redis).now()

        def checked(before: Records) -> Records:
            after = change(dict(before), now)
            _check_versions(before, after)
            return after

        return await AliasRecords(redis).change(checked)

    return change_at_redis(settings, act, run)


def _check_versions(before: Records, after: Records) -> None:
    """Verify that no change makes an alias a version of another. Raises: ValueError."""
    for name, alias in after.items():
        others = {*alias.weights, alias.shadow or name} - {name}
        for version in sorted(others & after.keys()):
            is_new = (before.get(name), before.get(version)) != (alias, after[version])
            # an alias may have a version of its own name
            if is_new and version not in after[version].weights:
                its = ", ".join(sorted(after[version].weights))
                raise ValueError(
                    f"{name}: {version!r} is an alias, and no alias serves another; its versions"
                    f" are {its}"
                )


def _options(name: str, options: Mapping[str, str]) -> dict[str, str]:
    return {
        key: full_name(name, value) if key in NAMES else value for key, value in options.items()
    }


def _is_positive(weight: str) -> bool:
    try:
        return float(weight) > 0
    except ValueError:
        return False  # validation reports it


def _checked(name: str, values: Mapping[str, Any]) -> Alias:
    """Validate the fields of a model alias. Raises: ValueError: states the errors."""
    try:
        return Alias.model_validate(values)
    except ValidationError as error:
        wrong = (
            f"{'.'.join(map(str, (name, *e['loc'])))}: {e['msg'].removeprefix(VALUE_ERROR)}"
            for e in error.errors()
        )
        raise ValueError("; ".join(wrong)) from None


def _in_a_line(alias: Alias) -> str:
    weights = " ".join(f"{version}={weight:g}" for version, weight in alias.weights.items())
    options = alias.model_dump(exclude={"weights", "stepped_back", "since"}, exclude_unset=True)
    parts = (f"{key}={value}" for key, value in options.items() if value is not None)
    return " ".join([weights, *parts])
