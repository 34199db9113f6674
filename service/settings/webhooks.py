"""`[webhooks]`: delivery of messages about ended jobs."""

from __future__ import annotations

from pydantic import Field, SecretStr

from service.settings.section import Section


class WebhookSettings(Section):
    """Webhooks that notify clients when a job has ended: signing, retries and timeouts."""

    secret: SecretStr | None = None
    """Signing secret of the tenant `default`, to which all clients belong if no API keys are
    required: `whsec_` and base64, as in Standard Webhooks. Other tenants create their own (`atelier
    webhooks create`). Requests with a `webhook` from a tenant without a secret get a 422."""
    timeout_s: float = Field(15, gt=0)
    """Timeout of one delivery."""
    max_attempts: int = Field(8, gt=0)
    """Number of failed deliveries after which a message is discarded."""
    retry_s: float = Field(5, gt=0)
    """Delay before the second delivery, doubled before each further attempt."""
    poll_every_s: float = Field(0.5, gt=0)
    """Interval at which front ends poll for messages."""
