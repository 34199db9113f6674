"""Authentication: tenants by the API keys that they send."""

from __future__ import annotations

import time

from redis.exceptions import RedisError

from service.auth.api_keys import ApiKey, ApiKeys, digest_of
from service.auth.exposure import operators_need_keys, wants_keys
from service.jobs.redis import connection
from service.settings.loopback import is_local
from service.settings.section import ConfigError
from service.settings.settings import Settings

MAX_REMEMBERED = 10_000


async def check_first_key(settings: Settings, address: str) -> None:
    """Check that somebody has a key, where others reach the address.

    Raises: ConfigError: nobody has one, and nothing was said; or Redis is not there to ask, or does
        not let us.
    """
    if settings.server.keys != "auto" or is_local(address):
        return
    keys = ApiKeys(await connection.connect(settings.redis))
    try:
        if await keys.any():
            return
    except (RedisError, OSError) as error:
        raise connection.refused(settings.redis, error) from error
    finally:
        await keys.close()
    raise ConfigError(
        f"server.keys: other machines can reach {address}, and there is no API key yet; make one"
        " (atelier keys create --tenant NAME), or let everybody in (server.keys = false,"
        " ATELIER_SERVER__KEYS=false or --no-keys)"
    )


class Authenticator:
    """Remembers each good key for `max_age_s`, so that most requests need no look into Redis.

    Wrong ones are looked up each time: a new key is good at once.
    """

    def __init__(self, keys: ApiKeys, max_age_s: float) -> None:
        self._keys = keys
        self._max_age_s = max_age_s
        self._known: dict[str, tuple[ApiKey, float]] = {}
        """The key of each digest, and when that was read."""

    @classmethod
    def make(cls, settings: Settings) -> Authenticator | None:
        """Build an authenticator; None where no keys are required. Raises: ConfigError."""
        server = settings.server
        if not wants_keys(server, server.host):
            return None
        return cls(ApiKeys(connection.client(settings.redis)), server.keys_age_s)

    @classmethod
    def of_operators(cls, settings: Settings) -> Authenticator | None:
        """Build one for operators; None where none of their keys is required."""
        server = settings.server
        if not operators_need_keys(server):
            return None
        return cls(ApiKeys(connection.client(settings.redis)), server.keys_age_s)

    async def close(self) -> None:
        """Close the connection to Redis."""
        await self._keys.close()

    async def find(self, text: str) -> ApiKey | None:
        """Return the key of that text; None if it is nobody's."""
        digest = digest_of(text)
        known, read_at = self._known.get(digest, (None, -float("inf")))
        if known and time.monotonic() - read_at < self._max_age_s:
            return known
        self._known.pop(digest, None)
        read_at = time.monotonic()
        key = await self._keys.find(text)
        if key is None:
            return None
        if len(self._known) >= MAX_REMEMBERED:
            self._known.clear()
        self._known[digest] = key, read_at
        return key
