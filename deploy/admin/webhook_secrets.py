"""`atelier webhooks`: create, list and revoke webhook secrets in the Redis of the settings."""

from __future__ import annotations

import sys

from redis.asyncio import Redis

from deploy.admin.api_keys import created, print_table, where
from deploy.admin.audited_actions import Act, at_redis, change_at_redis, recorded
from deploy.exit_codes import NotFound
from service.settings.settings import Settings
from service.webhooks.secrets import WebhookSecret, WebhookSecrets

COLUMNS = ("ID", "TENANT", "CREATED")


def create(settings: Settings, tenant: str, reason: str) -> None:
    """Print a new secret on standard output, and its description on standard error.

    Raises: ConfigError: Redis is unreachable. ValueError: invalid tenant name, or too many secrets.
    """

    async def make(redis: Redis) -> WebhookSecret:
        async with recorded(redis, Act("create webhook secret", tenant, reason)) as record:
            new = await WebhookSecrets(redis).create(tenant)
            record.details["secret"] = new.id
        return new

    new = at_redis(settings, make)
    print(new.text)
    text = f"secret {new.id} of tenant {tenant}, for servers on {where(settings)}"
    print(f"{text}; it is not shown again", file=sys.stderr)


def show(settings: Settings) -> None:
    """Print all secrets as a table, oldest first. Raises: ConfigError: Redis is unreachable."""
    secrets_found = at_redis(settings, lambda redis: WebhookSecrets(redis).all())
    print_table(
        COLUMNS,
        *((secret.id, secret.tenant, created(secret.created_at)) for secret in secrets_found),
    )


def revoke(settings: Settings, secret_id: str, reason: str) -> None:
    """Revoke a webhook secret.

    Raises: ConfigError: Redis is unreachable. NotFound: no such secret.
    """

    async def run(redis: Redis) -> None:
        if not await WebhookSecrets(redis).revoke(secret_id):
            message = f"there is no secret {secret_id!r}; `atelier webhooks list` shows all"
            raise NotFound(message)

    change_at_redis(settings, Act("revoke webhook secret", secret_id, reason), run)
