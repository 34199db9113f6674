"""API keys: creation, storage and lookup.

A key is `atl_ID_SECRET`, and is displayed once; Redis stores its SHA-256. A slow password hash
would only delay requests, since the secret is 256 random bits, which cannot be guessed. The id is
public: it locates the key in one read, and identifies it in lists.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from enum import StrEnum
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field
from redis.asyncio import Redis

from service.jobs.redis.keys import API_KEYS
from service.settings.tenants import check_tenant

PREFIX = "atl"
ID_BYTES = 6
SECRET_BYTES = 32


class Role(StrEnum):
    """Rights of an API key: a tenant's or an operator's."""

    TENANT = "tenant"
    """Access to everything of its tenant, and nothing else."""
    OPERATOR = "operator"
    """Access to `/v1/admin`, and to nothing of any tenant."""


class ApiKey(BaseModel):
    """Record of a key in Redis. `created_at` is seconds since the epoch, by Redis's clock."""

    model_config = ConfigDict(frozen=True)

    id: str
    tenant: str
    """Empty for an operator's key."""
    name: str
    created_at: float
    digest: str = Field(repr=False)
    """`digest_of` the whole key and its role."""
    role: Role = Role.TENANT


class ApiKeys:
    """API keys of all tenants and operators, in one Redis hash."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def close(self) -> None:
        """Close the connection to Redis."""
        await self._redis.aclose()

    async def create(self, tenant: str, name: str = "") -> tuple[ApiKey, str]:
        """Create a key of a tenant; return it with its text, which is not stored.

        Raises: ValueError: not a valid tenant name.
        """
        check_tenant(tenant)
        return await self._create(tenant, name, Role.TENANT)

    async def create_operator(self, name: str) -> tuple[ApiKey, str]:
        """Create a key of an operator; return it with its text.

        Args:
            name: person or program that uses it, for the audit log.
        """
        return await self._create("", name, Role.OPERATOR)

    async def _create(self, tenant: str, name: str, role: Role) -> tuple[ApiKey, str]:
        key_id = secrets.token_hex(ID_BYTES)
        text = f"{PREFIX}_{key_id}_{secrets.token_hex(SECRET_BYTES)}"
        seconds, microseconds = await self._redis.time()
        key = ApiKey(
            id=key_id,
            tenant=tenant,
            name=name,
            created_at=seconds + microseconds / 1e6,
            digest=digest_of(text, role),
            role=role,
        )
        await self._redis.hset(API_KEYS, key_id, key.model_dump_json())
        return key, text

    async def all(self) -> list[ApiKey]:
        """List all API keys, oldest first."""
        keys = _parsed(cast(list[str], await self._redis.hvals(API_KEYS)))
        return sorted(keys, key=lambda key: key.created_at)

    async def take(self, imported: Iterable[ApiKey]) -> int:
        """Import exported keys; return the number of new ones.

        Raises: ValueError: a different key has the same id; nothing was imported.
        """
        new: dict[str, ApiKey] = {}
        for key in imported:
            if new.setdefault(key.id, key) != key:
                raise ValueError(f"two different keys have the id {key.id}; leave one of them")

        async def add(pipe: Any) -> int:
            existing = {key.id: key for key in _parsed(await pipe.hvals(API_KEYS))}
            for key in new.values():
                if key.id in existing and key.digest != existing[key.id].digest:
                    raise ValueError(f"another key has the id {key.id}; revoke one of them")
            added = {
                key.id: key.model_dump_json() for key in new.values() if key.id not in existing
            }
            pipe.multi()
            if added:
                pipe.hset(API_KEYS, mapping=added)
            return len(added)

        transaction = self._redis.transaction(add, API_KEYS, value_from_callable=True)
        return cast(int, await transaction)

    async def any(self) -> bool:
        """Check whether any API key exists."""
        return bool(await self._redis.exists(API_KEYS))

    async def revoke(self, key_id: str) -> bool:
        """Revoke an API key; return whether it existed."""
        return bool(await self._redis.hdel(API_KEYS, key_id))

    async def find(self, text: str) -> ApiKey | None:
        """Look up the API key with this text; None: no such key."""
        prefix, _, rest = text.partition("_")
        key_id, _, secret = rest.partition("_")
        if prefix != PREFIX or not secret:
            return None
        stored = cast(str | None, await self._redis.hget(API_KEYS, key_id))
        if stored is None:
            return None
        key = ApiKey.model_validate_json(stored)
        return key if hmac.compare_digest(key.digest, digest_of(text, key.role)) else None


def _parsed(texts: Iterable[str]) -> list[ApiKey]:
    return [ApiKey.model_validate_json(text) for text in texts]


def id_of(text: str) -> str:
    """Return the public id in an API key's text. Other texts are returned unchanged."""
    prefix, _, rest = text.partition("_")
    return rest.partition("_")[0] if prefix == PREFIX else text


def digest_of(text: str, role: Role = Role.TENANT) -> str:
    """Compute the digest that identifies a stored key: SHA-256, in hex.

    An operator's digest includes the role. An older front end without roles then rejects the key
    instead of accepting it for a tenant with an empty name.
    """
    content = text if role is Role.TENANT else f"{role} {text}"
    return hashlib.sha256(content.encode()).hexdigest()
