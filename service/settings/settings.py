"""Settings: `atelier.toml`, every value overridable by the environment.

`ATELIER_REDIS__URL=redis://…` sets `[redis] url`. A wrong key or value stops the start with its
name. Durations end in `_s`, sizes in `_px` or `_bytes`.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from service.settings.batches import BatchSettings
from service.settings.limits import LimitSettings
from service.settings.loras import LoraSettings
from service.settings.metrics import MetricsSettings
from service.settings.models import ModelSettings
from service.settings.output import OutputSettings
from service.settings.pools import PoolSettings
from service.settings.queue import QueueSettings
from service.settings.redis import RedisSettings
from service.settings.safety import SafetySettings
from service.settings.section import ConfigError
from service.settings.server import ServerSettings
from service.settings.store import StoreSettings
from service.settings.tenants import TenantSettings
from service.settings.tracing import TracingSettings
from service.settings.upscalers import UpscalerSettings
from service.settings.usage import UsageSettings
from service.settings.webhooks import WebhookSettings

CONFIG_VARIABLE = "ATELIER_CONFIG"
"""Names the settings file."""
KEY_VARIABLE = "ATELIER_API_KEY"
"""Holds the key that `atelier generate` sends."""
NO_SETTINGS = frozenset({CONFIG_VARIABLE.lower(), KEY_VARIABLE.lower()})
"""ATELIER_ variables that are no settings themselves."""


class Settings(BaseSettings):
    """All settings of a system, of `atelier.toml`, the environment and the command line."""

    model_config = SettingsConfigDict(
        env_prefix="ATELIER_",
        env_nested_delimiter="__",
        env_parse_none_str="null",
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
    )

    state_dir: Path = Path(".atelier")
    """Folder of queue, outputs and compiled programs of a single machine."""
    compile_cache: Path | None = None
    """Folder of compiled programs, kept for the next start; workers of several machines may share
    one. Left out: below `state_dir`."""
    executables: str | None = None
    """Store of executables that `atelier compile` has made: folder, `s3://…` or `gs://…`. Workers
    fetch from it what their `compile_cache` lacks, before they compile. Whoever may write to it can
    run code in the workers. Left out: none."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is logged."""
    log_format: Literal["text", "json"] = "text"
    """\"text" for people, "json" for collectors of logs: one object a line."""
    redis: RedisSettings = RedisSettings()
    server: ServerSettings = ServerSettings()
    limits: LimitSettings = LimitSettings()
    queue: QueueSettings = QueueSettings()
    store: StoreSettings = StoreSettings()
    output: OutputSettings = OutputSettings()
    webhooks: WebhookSettings = WebhookSettings()
    safety: SafetySettings = SafetySettings()
    batches: BatchSettings = BatchSettings()
    tracing: TracingSettings = TracingSettings()
    usage: UsageSettings = UsageSettings()
    metrics: MetricsSettings = MetricsSettings()
    tenants: dict[str, TenantSettings] = Field(default_factory=dict)
    """Tenants by name; `"*"` is all that are not named. Those that `atelier tenants` keeps in Redis
    stand before these, and change without a restart."""
    models: dict[str, ModelSettings] = Field(default_factory=dict)
    """Models by name."""
    loras: dict[str, LoraSettings] = Field(default_factory=dict)
    """Adapters by name."""
    upscalers: dict[str, UpscalerSettings] = Field(default_factory=dict)
    """Upscalers by name."""
    pools: dict[str, PoolSettings] = Field(default_factory=dict)
    """Pools of workers by name."""

    @property
    def store_url(self) -> str:
        """Return where outputs are stored."""
        return self.store.url or str((self.state_dir / "outputs").resolve())

    @property
    def compile_folder(self) -> Path:
        """Return the folder of compiled programs."""
        return self.compile_cache or self.state_dir / "compile-cache"

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources of settings, the strongest first."""
        environment = StrictEnvironment(settings_cls)
        return init_settings, environment, TomlConfigSettingsSource(settings_cls, config_file())


class StrictEnvironment(EnvSettingsSource):
    """The environment, in which a misspelt ATELIER_ variable is an error like any other key."""

    def __call__(self) -> dict[str, Any]:
        """Return the environment's values, unknown ones too, so that they are refused."""
        return self._unknown() | super().__call__()

    def _unknown(self) -> dict[str, str | None]:
        prefix = self.env_prefix.lower()
        names = {
            name: name.removeprefix(prefix).split("__")[0]
            for name in self.env_vars
            if name.startswith(prefix) and name not in NO_SETTINGS
        }
        known = self.settings_cls.model_fields
        return {key: self.env_vars[name] for name, key in names.items() if key not in known}


def config_file() -> Path:
    """The settings file, which need not be there unless it was named.

    Raises: ConfigError: ATELIER_CONFIG names a file that is not there.
    """
    named = os.environ.get(CONFIG_VARIABLE)
    if named is not None and not Path(named).is_file():
        raise ConfigError(f"{CONFIG_VARIABLE}: there is no file {named!r}")
    return Path(named or "atelier.toml")


def load_settings(**given: Any) -> Settings:
    """Settings from file and environment, under the sections and values that are given here.

    Raises: ConfigError: names every unknown key and every wrong value.
    """
    try:
        return Settings(**given)
    except ValidationError as error:
        raise ConfigError(_explain(error)) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{config_file()}: {error}") from None
    except SettingsError as error:
        raise ConfigError(f"the environment: {error}") from None


def _explain(error: ValidationError) -> str:
    lines = (
        f"{'.'.join(str(part) for part in item['loc'])}: "
        + ("unknown key" if item["type"] == "extra_forbidden" else item["msg"])
        for item in error.errors()
    )
    return "the configuration cannot be used:\n" + "\n".join(f"  {line}" for line in lines)
