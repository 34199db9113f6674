"""Settings as environment variables, which the supervisor passes to its children."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pydantic import SecretStr

from service.settings.settings import Settings
from service.settings.webhooks import WebhookSettings

PREFIX = "ATELIER_"
XLA_DEVICES = "--xla_force_host_platform_device_count"


def for_pools(settings: Settings) -> Settings:
    """Return the settings of workers, without the secret that signs webhooks."""
    return settings.model_copy(update={"webhooks": WebhookSettings()})


def settings_environment(settings: Settings, base: Mapping[str, str]) -> dict[str, str]:
    """Return `base` with every setting added, overriding it and the settings file."""
    values = {f"{PREFIX}{name.upper()}": value for name, value in settings.model_dump().items()}
    others = {name: value for name, value in base.items() if name.split("__")[0] not in values}
    return others | {name: _text(value) for name, value in values.items()}


def with_host_devices(environment: Mapping[str, str], count: int) -> dict[str, str]:
    """Return `environment`, changed so that JAX has `count` virtual CPU devices."""
    flags = [flag for flag in environment.get("XLA_FLAGS", "").split() if XLA_DEVICES not in flag]
    joined = " ".join([*flags, f"{XLA_DEVICES}={count}"])
    return {**environment, "XLA_FLAGS": joined, "JAX_PLATFORMS": "cpu"}


def _text(value: object) -> str:
    if value is None or isinstance(value, dict):
        return json.dumps(value, default=_plain)
    return str(value)


def _plain(value: object) -> str:
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)
