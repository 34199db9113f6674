"""Aliases stored in Redis: names that stand for several versions of a model, with weights."""

from __future__ import annotations

from redis.asyncio import Redis

from service.jobs.model.alias import Alias
from service.jobs.records import Records
from service.jobs.redis import keys

MAX_NAME_CHARS = 200
"""Maximum length of a model's name in requests."""


class AliasRecords(Records[Alias]):
    """Records of aliases in Redis. Fields written by a newer Atelier are ignored."""

    def __init__(self, redis: Redis) -> None:
        parse = Alias.model_validate_json
        super().__init__(redis, keys.ALIASES, keys.ALIAS_CHANGES, parse, check_alias)


def check_alias(name: str) -> None:
    """Validate the name of a model alias. Raises: ValueError: requests cannot name it."""
    if not 0 < len(name) <= MAX_NAME_CHARS or not name.isprintable() or "/" in name:
        raise ValueError(
            f"{name!r} can't be an alias: take up to {MAX_NAME_CHARS} printable characters"
            " without a slash"
        )
