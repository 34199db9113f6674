"""Settings: reads `atelier.toml`, whose values environment variables override.

`ATELIER_REDIS__URL=redis://…` sets `[redis] url`. An unknown key or a wrong value stops the start
with its name. Durations end in `_s`, sizes in `_px` or `_bytes`.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator
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
from service.settings.loras import EmbeddingSettings, LoraSettings
from service.settings.models import ModelSettings, UpscalerSettings
from service.settings.names import check_aliases, check_model_name
from service.settings.output import OutputSettings, StoreSettings
from service.settings.pools import PoolSettings
from service.settings.queue import QueueSettings
from service.settings.redis import RedisSettings
from service.settings.safety import SafetySettings
from service.settings.section import ConfigError
from service.settings.server import ServerSettings
from service.settings.telemetry import MetricsSettings, TracingSettings
from service.settings.tenants import TenantSettings
from service.settings.usage import UsageSettings
from service.settings.webhooks import WebhookSettings

CONFIG_VARIABLE = "ATELIER_CONFIG"
"""Variable with the path of the settings file."""
KEY_VARIABLE = "ATELIER_API_KEY"
"""Variable with the API key that `atelier generate` and `atelier jobs` send."""
NO_SETTINGS = frozenset({CONFIG_VARIABLE.lower(), KEY_VARIABLE.lower()})
"""ATELIER_ variables that are not settings."""


class Settings(BaseSettings):
    """All settings, from `atelier.toml`, the environment and the command line."""

    model_config = SettingsConfigDict(
        env_prefix="ATELIER_",
        env_nested_delimiter="__",
        env_parse_none_str="null",
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
    )

    state_dir: Path = Path(".atelier")
    """Folder for the queue, outputs and compiled programs of a single machine."""
    compile_cache: Path | None = None
    """Folder of compiled programs, reused at the next start. Workers of several machines may share
    it. Default: in `state_dir`."""
    executables: str | None = None
    """Store of executables made by `atelier compile`: folder, `s3://…` or `gs://…`. Workers fetch
    programs from it that their `compile_cache` lacks, before they compile. Write access to it is
    equivalent to running code in the workers. Default: none."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is logged."""
    log_format: Literal["text", "json"] = "text"
    """\"text" for people, "json" for log collectors: one object per line."""
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
    """Tenants by name; `"*"` is all others. Tenants that `atelier tenants` stores in Redis override
    these, and change without a restart."""
    models: dict[str, ModelSettings] = Field(default_factory=dict)
    """Models by name."""
    aliases: dict[str, str] = Field(default_factory=dict)
    """Other names for models in requests, for clients with fixed names: `"dall-e-3" = "flux-dev"`.
    """
    loras: dict[str, LoraSettings] = Field(default_factory=dict)
    """Adapters by name."""
    embeddings: dict[str, EmbeddingSettings] = Field(default_factory=dict)
    """Embeddings (textual inversion) by name, which prompts contain."""
    upscalers: dict[str, UpscalerSettings] = Field(default_factory=dict)
    """Upscalers by name."""
    pools: dict[str, PoolSettings] = Field(default_factory=dict)
    """Pools of workers by name."""

    @model_validator(mode="after")
    def _has_usable_names(self) -> Settings:
        for name in self.models:
            check_model_name(name)
        check_aliases(self.aliases, self.models)
        if both := sorted(self.loras.keys() & self.embeddings.keys()):
            raise ValueError(f"loras and embeddings both have {both[0]!r}; rename one of them")
        return self

    @property
    def store_url(self) -> str:
        """Return the folder or URL of the store for outputs."""
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
    """Source of settings in the environment, which rejects misspelt ATELIER_ variables."""

    def __call__(self) -> dict[str, Any]:
        """Add unknown ATELIER_ variables to the values, so that validation rejects them."""
        return self._unknown() | super().__call__()

    def _unknown(self) -> dict[str, str | None]:
        prefix = self.env_prefix.lower()
        names = {
            name: name.removeprefix(prefix).split("__")[0]
            for name in self.env_vars
            if name.startswith(prefix) and name not in NO_SETTINGS
        }
        fields = self.settings_cls.model_fields
        return {key: self.env_vars[name] for name, key in names.items() if key not in fields}


def config_file() -> Path:
    """Locate the settings file. The default file need not exist.

    Raises: ConfigError: ATELIER_CONFIG names a file that does not exist.
    """
    path = os.environ.get(CONFIG_VARIABLE)
    if path is not None and not Path(path).is_file():
        raise ConfigError(f"{CONFIG_VARIABLE}: the file {path!r} does not exist")
    return Path(path or "atelier.toml")


def load_settings(**overrides: Any) -> Settings:
    """Load settings from file and environment, overridden by the given sections and values.

    Raises: ConfigError: names every unknown key and every wrong value.
    """
    try:
        return Settings(**overrides)
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
