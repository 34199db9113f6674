"""API keys: who may ask, and for which tenant.

A key is `atl_ID_SECRET`, and is shown once: Redis keeps its SHA-256. A slow hash, as passwords
need, would add nothing but time to every request, since the secret is 256 random bits that no one
comes upon by trying. The id is no secret: it finds the key in one read, and names it in lists.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from typing import cast

from pydantic import BaseModel, ConfigDict, Field
from redis.asyncio import Redis

from service.jobs.redis.keys import API_KEYS

PREFIX = "atl"
ID_BYTES = 6
SECRET_BYTES = 32
TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Names that a tenant may have: they become parts of Redis keys and settings."""


class ApiKey(BaseModel):
    """Record of a key in Redis. `created_at` is seconds since the epoch, by Redis's clock."""

    model_config = ConfigDict(frozen=True)

    id: str
    tenant: str
    name: str
    created_at: float
    digest: str = Field(repr=False)
    """SHA-256 of the whole key, in hex."""


class ApiKeys:
    """The keys in Redis: those of all tenants, in one hash."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def close(self) -> None:
        """Close the connection to Redis."""
        await self._redis.aclose()

    async def create(self, tenant: str, name: str = "") -> tuple[ApiKey, str]:
        """A new key, and its text, which nobody can read again.

        Raises: ValueError: a tenant can't be called so.
        """
        check_tenant(tenant)
        key_id = secrets.token_hex(ID_BYTES)
        text = f"{PREFIX}_{key_id}_{secrets.token_hex(SECRET_BYTES)}"
        seconds, microseconds = await self._redis.time()
        key = ApiKey(
            id=key_id,
            tenant=tenant,
            name=name,
            created_at=seconds + microseconds / 1e6,
            digest=digest_of(text),
        )
        await self._redis.hset(API_KEYS, key_id, key.model_dump_json())
        return key, text

    async def all(self) -> list[ApiKey]:
        """Oldest first."""
        found = (ApiKey.model_validate_json(text) for text in await self._redis.hvals(API_KEYS))
        return sorted(found, key=lambda key: key.created_at)

    async def any(self) -> bool:
        """Return whether there is any key."""
        return bool(await self._redis.exists(API_KEYS))

    async def revoke(self, key_id: str) -> bool:
        """Revoke a key; return whether it existed."""
        return bool(await self._redis.hdel(API_KEYS, key_id))

    async def find(self, text: str) -> ApiKey | None:
        """The key that this is the text of; None: nobody's."""
        prefix, _, rest = text.partition("_")
        key_id, _, secret = rest.partition("_")
        if prefix != PREFIX or not secret:
            return None
        stored = cast(str | None, await self._redis.hget(API_KEYS, key_id))
        if stored is None:
            return None
        key = ApiKey.model_validate_json(stored)
        return key if hmac.compare_digest(key.digest, digest_of(text)) else None


def check_tenant(name: str) -> None:
    """Check a tenant's name.

    Raises: ValueError: a tenant can't be called so.
    """
    if not TENANT.fullmatch(name):
        raise ValueError(
            f"{name!r} can't be a tenant: take up to 64 letters, digits, dots, dashes"
            " and underscores, a letter or digit first"
        )


def id_of(text: str) -> str:
    """Return the part of it that may be shown: the id, where it is the text of a key."""
    prefix, _, rest = text.partition("_")
    return rest.partition("_")[0] if prefix == PREFIX else text


def digest_of(text: str) -> str:
    """Return the digest under which a key is stored: SHA-256, in hex."""
    return hashlib.sha256(text.encode()).hexdigest()
