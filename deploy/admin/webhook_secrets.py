"""`atelier webhooks`: make, list and revoke secrets of webhooks in the Redis of the settings."""

from __future__ import annotations

import sys

from deploy.admin.api_keys import at_redis, created, print_table, where
from service.settings.settings import Settings
from service.webhooks.secrets import WebhookSecrets

COLUMNS = ("ID", "TENANT", "CREATED")


def create(settings: Settings, tenant: str) -> None:
    """Print a new secret on standard output, and what goes with it on standard error.

    Raises: ConfigError: Redis is not there. ValueError: no name for a tenant, or it has enough.
    """
    new = at_redis(settings, lambda redis: WebhookSecrets(redis).create(tenant))
    print(new.text)
    said = f"secret {new.id} of tenant {tenant}, for servers on {where(settings)}"
    print(f"{said}; it is not shown again", file=sys.stderr)


def show(settings: Settings) -> None:
    """Print all secrets as a table, oldest first. Raises: ConfigError: Redis is not there."""
    found = at_redis(settings, lambda redis: WebhookSecrets(redis).all())
    print_table(COLUMNS, *((one.id, one.tenant, created(one.created_at)) for one in found))


def revoke(settings: Settings, secret_id: str) -> bool:
    """Revoke a secret; return whether there was one. Raises: ConfigError: Redis is not there."""
    return at_redis(settings, lambda redis: WebhookSecrets(redis).revoke(secret_id))
