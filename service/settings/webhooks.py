"""`[webhooks]`: how messages about ended jobs are sent."""

from __future__ import annotations

from pydantic import Field, SecretStr

from service.settings.section import Section


class WebhookSettings(Section):
    secret: SecretStr | None = None
    """`whsec_` and base64, as Standard Webhooks writes it: of the tenant `default`, which everybody
    is where no API keys are wanted. Other tenants have their own (`atelier webhooks create`); one
    without is refused `webhook`."""
    timeout_s: float = Field(15, gt=0)
    max_attempts: int = Field(8, gt=0)
    retry_s: float = Field(5, gt=0)
    """Before the second attempt; doubled for each one after."""
    poll_every_s: float = Field(0.5, gt=0)
