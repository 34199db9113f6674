"""`atelier webhooks`: make, list and revoke secrets of webhooks in the Redis of the settings."""

from __future__ import annotations

import sys

from redis.asyncio import Redis

from deploy.admin.acts import Act, at_redis, change_at_redis, recorded
from deploy.admin.api_keys import created, print_table, where
from deploy.exit_codes import NotThere
from service.settings.settings import Settings
from service.webhooks.secrets import WebhookSecret, WebhookSecrets

COLUMNS = ("ID", "TENANT", "CREATED")


def create(settings: Settings, tenant: str, reason: str) -> None:
    """Print a new secret on standard output, and what goes with it on standard error.

    Raises: ConfigError: Redis is not there. ValueError: no name for a tenant, or it has enough.
    """

    async def make(redis: Redis) -> WebhookSecret:
        async with recorded(redis, Act("create webhook secret", tenant, reason)) as record:
            new = await WebhookSecrets(redis).create(tenant)
            record.details["secret"] = new.id
        return new

    new = at_redis(settings, make)
    print(new.text)
    said = f"secret {new.id} of tenant {tenant}, for servers on {where(settings)}"
    print(f"{said}; it is not shown again", file=sys.stderr)


def show(settings: Settings) -> None:
    """Print all secrets as a table, oldest first. Raises: ConfigError: Redis is not there."""
    found = at_redis(settings, lambda redis: WebhookSecrets(redis).all())
    print_table(COLUMNS, *((one.id, one.tenant, created(one.created_at)) for one in found))


def revoke(settings: Settings, secret_id: str, reason: str) -> None:
    """Revoke a secret. Raises: ConfigError: Redis is not there. NotThere: the secret is not."""

    async def run(redis: Redis) -> None:
        if not await WebhookSecrets(redis).revoke(secret_id):
            said = f"there is no secret {secret_id!r}; `atelier webhooks list` shows all"
            raise NotThere(said)

    change_at_redis(settings, Act("revoke webhook secret", secret_id, reason), run)
