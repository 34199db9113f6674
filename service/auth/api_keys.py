"""API keys: who may ask, and for which tenant.

A key is `atl_ID_SECRET`, and is shown once: Redis keeps its SHA-256. A slow hash, as passwords
need, would add nothing but time to every request, since the secret is 256 random bits that no one
comes upon by trying. The id is no secret: it finds the key in one read, and names it in lists.
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
    """Rights of a key."""

    TENANT = "tenant"
    """Everything of its tenant's, and nothing else."""
    OPERATOR = "operator"
    """`/v1/admin`, and nothing of any tenant's."""


class ApiKey(BaseModel):
    """Record of a key in Redis. `created_at` is seconds since the epoch, by Redis's clock."""

    model_config = ConfigDict(frozen=True)

    id: str
    tenant: str
    """Empty, of an operator's."""
    name: str
    created_at: float
    digest: str = Field(repr=False)
    """`digest_of` the whole key and its role."""
    role: Role = Role.TENANT


class ApiKeys:
    """The keys in Redis: those of all tenants, in one hash."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def close(self) -> None:
        """Close the connection to Redis."""
        await self._redis.aclose()

    async def create(self, tenant: str, name: str = "") -> tuple[ApiKey, str]:
        """A new key of a tenant, and its text, which nobody can read again.

        Raises: ValueError: a tenant can't be called so.
        """
        check_tenant(tenant)
        return await self._create(tenant, name, Role.TENANT)

    async def create_operator(self, name: str) -> tuple[ApiKey, str]:
        """A new key of an operator, and its text, as `create`.

        Args:
            name: of the person, or of what else acts by it; the audit log has it.
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
        """Oldest first."""
        found = _parsed(cast(list[str], await self._redis.hvals(API_KEYS)))
        return sorted(found, key=lambda key: key.created_at)

    async def take(self, taken: Iterable[ApiKey]) -> int:
        """Add keys that were exported; return how many were not there before.

        Raises: ValueError: another key has the id of one of them; then none was added.
        """
        new: dict[str, ApiKey] = {}
        for key in taken:
            if new.setdefault(key.id, key) != key:
                raise ValueError(f"two different keys have the id {key.id}; leave one of them")

        async def add(pipe: Any) -> int:
            known = {key.id: key for key in _parsed(await pipe.hvals(API_KEYS))}
            for key in new.values():
                if key.id in known and key.digest != known[key.id].digest:
                    raise ValueError(f"another key has the id {key.id}; revoke one of them")
            added = {key.id: key.model_dump_json() for key in new.values() if key.id not in known}
            pipe.multi()
            if added:
                pipe.hset(API_KEYS, mapping=added)
            return len(added)

        transaction = self._redis.transaction(add, API_KEYS, value_from_callable=True)
        return cast(int, await transaction)

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
        return key if hmac.compare_digest(key.digest, digest_of(text, key.role)) else None


def _parsed(texts: Iterable[str]) -> list[ApiKey]:
    return [ApiKey.model_validate_json(text) for text in texts]


def id_of(text: str) -> str:
    """Return the part of it that may be shown: the id, where it is the text of a key."""
    prefix, _, rest = text.partition("_")
    return rest.partition("_")[0] if prefix == PREFIX else text


def digest_of(text: str, role: Role = Role.TENANT) -> str:
    """Return the digest under which a key is stored: SHA-256, in hex.

    An operator's is of its role, too: an older front end that knows no roles then finds that the
    key is nobody's, where it would let it act for a tenant without a name.
    """
    told = text if role is Role.TENANT else f"{role} {text}"
    return hashlib.sha256(told.encode()).hexdigest()
