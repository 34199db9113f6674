"""Signing secrets of webhooks, separate per tenant, so that none can forge another's messages.

Messages are signed with each of a tenant's one or two secrets. For rotation, create a new one,
configure the receivers, then revoke the old one. Redis stores the secret itself, because signing
needs it, but it is displayed only once.

Source: the Standard Webhooks specification, version 1.0.0.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from redis.asyncio import Redis
from redis.exceptions import WatchError

from service.auth.api_keys import ID_BYTES
from service.jobs.redis.keys import WEBHOOK_SECRETS
from service.settings.tenants import check_tenant

PREFIX = "whsec_"
SECRET_BYTES = 32
MAX_VALID = 2
"""Maximum number of valid secrets per tenant."""


class WebhookSecret(BaseModel):
    """Record of a webhook secret in Redis.

    `created_at` is seconds since the epoch, by Redis's clock.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    tenant: str
    created_at: float
    text: str = Field(repr=False)


_SECRETS = TypeAdapter(list[WebhookSecret])
Change = Callable[[list[WebhookSecret]], list[WebhookSecret]]


class WebhookSecrets:
    """Webhook secrets of all tenants, in one Redis hash, each tenant's newest first."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def create(self, tenant: str) -> WebhookSecret:
        """Create a webhook secret of a tenant, in addition to an existing one.

        Raises: ValueError: not a valid tenant name, or the tenant has two already.
        """
        check_tenant(tenant)
        seconds, microseconds = await self._redis.time()
        new = WebhookSecret(
            id=secrets.token_hex(ID_BYTES),
            tenant=tenant,
            created_at=seconds + microseconds / 1e6,
            text=PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode(),
        )
        while not await self._replace(tenant, lambda valid: [new, *_with_room(valid)]):
            pass
        return new

    async def all(self) -> list[WebhookSecret]:
        """List all webhook secrets, oldest first."""
        texts = await self._redis.hvals(WEBHOOK_SECRETS)
        stored = [secret for text in texts for secret in _SECRETS.validate_json(text)]
        return sorted(stored, key=lambda secret: secret.created_at)

    async def of(self, tenant: str) -> list[WebhookSecret]:
        """List a tenant's valid secrets, newest first."""
        text = await self._redis.hget(WEBHOOK_SECRETS, tenant)
        return _SECRETS.validate_json(text) if text else []

    async def revoke(self, secret_id: str) -> bool:
        """Revoke a webhook secret; return whether it existed."""
        for secret in await self.all():
            if secret.id == secret_id:
                while not await self._replace(secret.tenant, lambda v: _without(v, secret_id)):
                    pass
                return True
        return False

    async def _replace(self, tenant: str, change: Change) -> bool:
        """Replace a tenant's webhook secrets; return False if they were changed concurrently."""
        async with self._redis.pipeline(transaction=True) as pipe:
            await pipe.watch(WEBHOOK_SECRETS)
            text = await pipe.hget(WEBHOOK_SECRETS, tenant)
            valid = change(_SECRETS.validate_json(text) if text else [])
            pipe.multi()
            if valid:
                pipe.hset(WEBHOOK_SECRETS, tenant, _SECRETS.dump_json(valid).decode())
            else:
                pipe.hdel(WEBHOOK_SECRETS, tenant)
            try:
                await pipe.execute()
            except WatchError:
                return False
        return True


def _with_room(valid: list[WebhookSecret]) -> list[WebhookSecret]:
    """Check that a tenant may have another webhook secret. Raises: ValueError."""
    if len(valid) < MAX_VALID:
        return valid
    raise ValueError(
        f"there are {MAX_VALID} valid secrets already; revoke the older one, {valid[-1].id}"
    )


def _without(valid: list[WebhookSecret], secret_id: str) -> list[WebhookSecret]:
    return [secret for secret in valid if secret.id != secret_id]
