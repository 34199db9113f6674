"""`[webhooks]`: how messages about ended jobs are sent."""

from __future__ import annotations

from pydantic import Field, SecretStr

from service.settings.section import Section


class WebhookSettings(Section):
    """Webhooks that tell of a job's end."""

    secret: SecretStr | None = None
    """Signing secret of the tenant `default`, which everybody is where no API keys are required:
    `whsec_` and base64, as Standard Webhooks writes it. Other tenants have their own (`atelier
    webhooks create`); one without gets a 422 for `webhook`."""
    timeout_s: float = Field(15, gt=0)
    """Timeout of one delivery."""
    max_attempts: int = Field(8, gt=0)
    """Deliveries after which a message is given up."""
    retry_s: float = Field(5, gt=0)
    """Delay before the second delivery; doubled for each one after."""
    poll_every_s: float = Field(0.5, gt=0)
    """Interval at which front ends look for messages."""
