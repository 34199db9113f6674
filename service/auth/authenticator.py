"""Authentication by API keys, with a cache."""

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
    """Check that a key exists if other machines can reach the address.

    Raises: ConfigError: no key exists, and `server.keys` is not set; or Redis is unreachable or
    denies access.
    """
    if settings.server.keys != "auto" or is_local(address):
        return
    keys = ApiKeys(await connection.connect(settings.redis))
    try:
        if await keys.any():
            return
    except (RedisError, OSError) as error:
        raise connection.config_error(settings.redis, error) from error
    finally:
        await keys.close()
    raise ConfigError(
        f"server.keys: other machines can reach {address}, and no API key exists yet; create one"
        " (atelier keys create --tenant NAME), or allow access without keys (server.keys = false,"
        " ATELIER_SERVER__KEYS=false or --no-keys)"
    )


class Authenticator:
    """Authenticator that caches each valid key for `max_age_s`, to avoid reads of Redis.

    Invalid keys are always looked up, so a new key is valid immediately.
    """

    def __init__(self, keys: ApiKeys, max_age_s: float) -> None:
        self._keys = keys
        self._max_age_s = max_age_s
        self._cached: dict[str, tuple[ApiKey, float]] = {}
        """Cached key of each digest, and the time of its read."""

    @classmethod
    def make(cls, settings: Settings) -> Authenticator | None:
        """Create the authenticator of tenants; None: no keys are required. Raises: ConfigError."""
        server = settings.server
        if not wants_keys(server, server.host):
            return None
        return cls(ApiKeys(connection.client(settings.redis)), server.keys_age_s)

    @classmethod
    def of_operators(cls, settings: Settings) -> Authenticator | None:
        """Create the authenticator of operators; None: no keys are required."""
        server = settings.server
        if not operators_need_keys(server):
            return None
        return cls(ApiKeys(connection.client(settings.redis)), server.keys_age_s)

    async def close(self) -> None:
        """Close the authenticator's connection to Redis."""
        await self._keys.close()

    async def find(self, text: str) -> ApiKey | None:
        """Look up the API key with that text; None: no such key."""
        digest = digest_of(text)
        cached, read_at = self._cached.get(digest, (None, -float("inf")))
        if cached and time.monotonic() - read_at < self._max_age_s:
            return cached
        self._cached.pop(digest, None)
        read_at = time.monotonic()
        key = await self._keys.find(text)
        if key is None:
            return None
        if len(self._cached) >= MAX_REMEMBERED:
            self._cached.clear()
        self._cached[digest] = key, read_at
        return key
