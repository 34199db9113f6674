"""Settings: `atelier.toml`, every value overridable by the environment.

`ATELIER_REDIS__URL=redis://…` sets `[redis] url`. A wrong key or value stops the start with its
name. Durations end in `_s`, sizes in `_px` or `_bytes`.
"""

from __future__ import annotations

import os
import tomllib
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FilePath,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from models.spec.quality_presets import EightBit, Quality

CONFIG_VARIABLE = "ATELIER_CONFIG"
"""Names the settings file."""
KEY_VARIABLE = "ATELIER_API_KEY"
"""Holds the key that `atelier generate` sends."""
NO_SETTINGS = frozenset({CONFIG_VARIABLE.lower(), KEY_VARIABLE.lower()})
"""ATELIER_ variables that are no settings themselves."""


class ConfigError(Exception):
    """The configuration cannot be used; the message names the key and says what is wrong."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RedisSettings(Section):
    url: str | None = None
    """`redis://…`, `rediss://…` (TLS) or `unix://…`. None: `atelier up` embeds a server; `serve`
    and `worker` refuse to start."""
    username: str | None = None
    """Of the server's ACL; left out: its default user."""
    password: SecretStr | None = None
    password_file: FilePath | None = None
    """Holds the password instead, and is read again for each connection."""
    ca_file: FilePath | None = None
    """Certificates of those who may vouch for the server; left out: the system's."""
    cert_file: FilePath | None = None
    """Our own certificate, where the server wants one, and its key."""
    key_file: FilePath | None = None
    check_name: bool = True
    """Whether the server's certificate has to bear the host of `url`. False is for a `ca_file`
    whose authority vouches for that server alone, as a Memorystore's does."""

    @model_validator(mode="after")
    def _fits(self) -> RedisSettings:
        try:
            parts = urlsplit(self.url or "")
        except ValueError:  # which may quote a part of the password
            raise ValueError("url is no address, such as redis://HOST:PORT") from None
        secret = self.password or self.password_file
        if self.url is None and (self.username or secret):
            raise ValueError("username and password need url: the embedded server has none")
        if self.password and self.password_file:
            raise ValueError("password and password_file exclude each other")
        if secret and parts.password:
            raise ValueError("there is a password in url, too; keep one of them")
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file belong together")
        if (self.ca_file or self.cert_file) and parts.scheme != "rediss":
            raise ValueError("ca_file and cert_file need a url that begins with rediss://")
        if not self.check_name and not self.ca_file:
            raise ValueError("check_name = false needs ca_file: else any certificate would do")
        return self


class LimitSettings(Section):
    """What the front end takes at most, whatever the model could do."""

    max_side_px: int = Field(4096, gt=0)
    max_pixels: int = Field(4096 * 4096, gt=0)
    max_frames: int = Field(257, gt=0)
    max_clip_pixels: int = Field(1280 * 720 * 257, gt=0)
    """Of all frames of one clip: what a pool holds in memory while it encodes it, times three."""
    max_steps: int = Field(200, gt=0)
    max_images: int = Field(16, gt=0)
    max_prompt_chars: int = Field(10_000, gt=0)
    max_body_bytes: int = Field(32 * 2**20, gt=0)
    max_inflight_bytes: int = Field(256 * 2**20, gt=0)
    """Of bodies that are read or checked and outputs that are sent, all requests together; one
    client (a tenant, or without keys an address) may have half of it, and one request at a time
    in any case."""
    max_image_pixels: int = Field(40_000_000, gt=0)
    """Of a picture sent as input, before it is decoded. A process that checks one may use 256 MiB
    and 24 bytes a pixel."""
    image_cpu_s: float = Field(5, gt=0)
    """Processor time that a picture sent as input may take to be decoded."""
    max_wait_s: float = Field(600, gt=0)
    """The longest `Prefer: wait=N` or waiting `Accept` that is honoured."""


class ServerSettings(Section):
    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65535)
    """0 takes a free port."""
    published_at: str | None = None
    """The address at which this machine lets others in, where that is not `host`: of a container's
    port. It decides about `keys`."""
    keys: Literal["auto"] | bool = "auto"
    """Whether /v1 wants an API key; "auto": unless the address can be reached from this machine
    alone. Set it to true where a proxy on this machine lets others in."""
    keys_age_s: float = Field(1, ge=0)
    """How long a revoked key may still be taken."""
    allow_image_urls: bool = False
    """Whether `image` may be an http(s) address."""
    allow_networks: tuple[IPv4Network | IPv6Network, ...] = ()
    """Networks that image addresses and webhooks may reach besides the public internet."""
    fetch_timeout_s: float = Field(20, gt=0)
    """For fetching one image address, from the name's resolution to the last byte."""
    hosts: tuple[str, ...] = ()
    """Names by which clients may call this server, such as `atelier.example`; `*.example` is all
    below it. Addresses and `localhost` need no entry. Without keys other names are refused, since
    a foreign page may point a name of its own here; with keys only where names are listed."""
    max_connections: int = Field(4096, gt=0)
    """Of clients at the same time, and no more than three quarters of the file descriptors that
    the process may have; beyond that the one that keeps us waiting for the longest time is
    closed."""
    max_waiting: int | None = Field(None, gt=0)
    """Requests of one client (a tenant, or without keys an address) that wait for a job or follow
    its events; left out: a quarter of the connections."""
    header_s: float = Field(10, gt=0)
    """For a request's headers to arrive, from the connection or the first byte on."""
    body_s: float = Field(30, gt=0)
    """For a request's body to arrive, besides what it takes at `min_bytes_per_s`; and for a client
    to take something of its answer."""
    min_bytes_per_s: float = Field(16_384, gt=0)
    """Slower clients are closed."""
    keep_alive_s: float = Field(15, gt=0)
    """An event stream without news says so this often."""
    models_age_s: float = Field(1, ge=0)
    """How old the front end's copy of the registered models may get."""
    image_processes: int = Field(2, gt=0)
    """Request pictures that are checked at the same time, each in a process of its own; where there
    are keys, one tenant gets all but one of them."""
    shutdown_grace_s: float = Field(10, ge=0)
    idle_s: float = Field(5, gt=0)
    """How long a connection stays open between two requests. It has to be longer than a load
    balancer keeps its own, or that sends requests into connections which have just been closed."""


class QueueSettings(Section):
    max_queued: int = Field(10_000, gt=0)
    """Of one model; more are refused with 429, but of tenants that have less than an even share of
    these places: nobody keeps the others out."""
    lease_s: float = Field(15, gt=0)
    """A pool that does not renew for this long loses its jobs."""
    reap_every_s: float = Field(2, gt=0)
    max_attempts: int = Field(3, gt=0)
    """Claims after which a job that its pools give up, or die with, fails for good."""
    max_deaths: int = Field(2, gt=0)
    """Pools that may die with a job, without its getting any further, until it is set aside; no
    more than `max_attempts`."""
    retention_s: float = Field(24 * 3600, gt=0)
    """How long an ended job, its events and its outputs are kept."""
    model_retention_s: float = Field(7 * 24 * 3600, gt=0)
    """How long a model is listed, and takes requests, without any pool; its jobs keep it."""
    idempotency_s: float = Field(24 * 3600, gt=0)
    deposit_s: float = Field(600, gt=0)
    """How long the pictures of a request wait in the store for it to be accepted: longer than that
    takes. Those of a front end that died in between are deleted then."""
    max_events: int = Field(256, gt=0)
    """Of one job; older ones are dropped from its stream."""
    priority_s: float = Field(600, ge=0)
    """How long a level of priority lets others of the same tenant wait at the most."""
    priority_advance_s: float = Field(30, ge=0)
    """By how many device-seconds a level of priority brings a tenant ahead of others."""
    deadline_credit_s: float = Field(300, ge=0)
    """By how many device-seconds deadlines may bring a tenant ahead of its share."""
    affinity_s: float = Field(2, ge=0)
    """How long a job waits for a pool that has compiled its shape while others could take it."""


class TenantSettings(Section):
    """What a tenant may have. Left out of a tenant's section: no limit."""

    weight: float = Field(1, gt=0, allow_inf_nan=False)
    """Its share of the pools, against those of others that wait."""
    max_queued: int | None = Field(None, gt=0)
    """Jobs that wait at the same time, of all models together."""
    max_compiling: int | None = Field(None, gt=0)
    """Jobs whose programs have to be compiled, at the same time and in all pools together; its
    others of that kind wait. What one pool compiles at a time is `pools.NAME.max_compiling`."""
    metrics_class: str = Field("default", pattern=r"^[a-z0-9_-]{1,32}$")
    """What metrics call it, together with all others of that class: they name no tenant."""
    stored_bytes: int | None = Field(None, gt=0)
    """Of pictures sent and made, until their jobs are deleted or `queue.retention_s` is over. A
    job is taken while anything is left and its own pictures fit; what it makes may go beyond it."""
    device_seconds_per_hour: float | None = Field(None, gt=0, allow_inf_nan=False)
    """Of jobs that ended within the last hour and of those that have not ended, as predicted; a
    job is taken while anything is left, so that the last one may go beyond it."""


class TracingSettings(Section):
    endpoint: str | None = None
    """Where spans go by OTLP over HTTP, such as `http://collector:4318` (`/v1/traces` is added
    where there is no path). None: nothing is traced. Headers, certificates and resource attributes
    come from OpenTelemetry's own variables (`OTEL_EXPORTER_OTLP_HEADERS`, …)."""
    sample_ratio: float = Field(1, ge=0, le=1)
    """Of traces that begin here."""
    follow_clients: bool = True
    """Whether a client's `traceparent` is gone on with, and its choice of being recorded; false:
    every request begins a trace of its own."""

    @model_validator(mode="after")
    def _is_reachable(self) -> TracingSettings:
        parts = urlsplit(self.endpoint or "")
        is_url = parts.scheme in ("http", "https") and parts.hostname
        if self.endpoint is not None and not is_url:
            raise ValueError("endpoint must be a whole http or https URL")
        return self

    @property
    def address(self) -> str:
        parts = urlsplit(self.endpoint or "")
        return parts._replace(path=parts.path.rstrip("/") or "/v1/traces").geturl()


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


class StoreSettings(Section):
    url: str | None = None
    """A folder, `s3://…` or `gs://…`; None: `outputs/` under the state folder."""


class TilingSettings(Section):
    """Squares that pictures are encoded and decoded in where memory is short."""

    side: int = Field(512, gt=0)
    """Pixels."""
    stride: int = Field(384, gt=0)
    """Pixels from where one begins to where the next one does; what they share is blended."""


class SizeSettings(Section):
    width: int = Field(gt=0)
    height: int = Field(gt=0)
    num_frames: int | None = Field(None, gt=0)
    """Of a clip; left out: any number."""
    max_sequence_length: int | None = Field(None, gt=0)
    """Text tokens, where requests may choose them; left out: the model's default."""


class ModelSettings(Section):
    source: str
    """A folder in diffusers' layout, a hub id with an optional @revision, or a single file."""
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    """Of the weights."""
    activation_dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """What the networks compute in; left out: as the weights."""
    defaults: dict[str, Any] = Field(default_factory=dict)
    """Of request fields."""
    quality: dict[str, Quality] = Field(default_factory=dict)
    """Presets by name, beside the model's own or in their place. Which one a request has that
    names none is a default like any other: `defaults.quality`."""
    eight_bit: EightBit | None = None
    """Whether the denoising network's blocks have weights of 8 bits: `beside` their exact ones, for
    half of their memory more, so that requests may choose; or `instead` of them, for half of it,
    and then there is no `exact`. Left out: none, and no preset has 8 bits."""
    base: str | None = None
    """Where configs and tokenizers come from if `source` is a single file of weights: a folder in
    diffusers' layout, or a hub id."""
    swap_experts: bool | None = None
    """Whether experts take turns on the device instead of lying there together (Wan 2.2); left
    out: where the device's memory demands it."""
    vae_tiling: bool | TilingSettings | None = None
    """Left out: where the device's memory demands it, which changes pictures a little."""
    encoders_on_host: bool | None = None
    """Whether text and image encoders lie in host memory and come to the device a layer at a time
    when they are used; left out: where the device's memory demands it."""
    batching: Literal["exact", "fast"] = "exact"
    """"exact": each step has one program of one batch size, so that the same request has the same
    bytes alone and beside any others. "fast": programs of several batch sizes, chosen by measured
    times; a picture differs a little by its company, as `GET /v1/models` tells."""
    exact_rows: int | None = Field(None, gt=0)
    """Pictures that the one program of exact batching steps together; where fewer are under way it
    is padded. Left out: as many as `data` of the mesh has side by side, so 1 without it."""
    sizes: Literal["any", "listed"] | tuple[SizeSettings, ...] = "any"
    """Of pictures and clips that are served: each new one is compiled, which takes a minute or
    more. A list of them; "listed": those of `warmup`, which are compiled before the pool is ready;
    "any": whatever the model's limits allow. Another one is refused with 422."""
    warmup: list[dict[str, Any]] = [{}]
    """Requests whose shapes are compiled before the pool is ready; {} is the model's default."""

    @model_validator(mode="after")
    def _is_one_batching(self) -> ModelSettings:
        if self.exact_rows is not None and self.batching != "exact":
            raise ValueError('exact_rows goes with batching = "exact"')
        return self


class HostsSettings(Section):
    """The processes of a slice that lies on several hosts, one a host; each has these settings."""

    count: int = Field(1, gt=0)
    coordinator: str | None = None
    """HOST:PORT where the first process is met; None: on a TPU pod they know each other."""
    index: int | None = Field(None, ge=0)
    """Of this process, from 0: that one claims the jobs; None: as for the coordinator."""
    port: int = Field(0, ge=0, le=65535)
    """Where the first process tells the others what to run; 0: any free one."""

    @model_validator(mode="after")
    def _is_whole(self) -> HostsSettings:
        if (self.coordinator is None) != (self.index is None):
            raise ValueError("coordinator and index belong together")
        if self.index is not None and self.index >= self.count:
            raise ValueError(f"index {self.index} is none of {self.count} processes")
        return self


class MeshSettings(Section):
    """Sizes of a mesh slice's axes (data, fsdp, cfg, context, tensor) inside a host or TPU slice
    and between them; one of each may be -1 and takes what is left. `{cfg = 2}` is short for
    `{ici = {cfg = 2}}`."""

    ici: dict[str, int] = Field(default_factory=dict)
    dcn: dict[str, int] = Field(default_factory=dict)
    ring: int | None = Field(None, gt=0)
    """Parts of the context that pass keys and values round; the rest of it swaps tokens for heads
    (Ulysses). Left out: as many as hosts and heads demand."""

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        if not isinstance(value, dict) or value.keys() & {"ici", "dcn"}:
            return value
        sizes = {axis: size for axis, size in value.items() if axis != "ring"}
        return {"ici": sizes, "ring": value.get("ring")}


class PoolSettings(Section):
    model: str
    hosts: HostsSettings = HostsSettings()
    count: int = Field(1, gt=0)
    """Mesh slices, each with a pool of its own; requests are scheduled across them."""
    devices: int | None = Field(None, gt=0)
    """Of one slice, on each of its hosts; left out: what `mesh` says, or its share of the host."""
    mesh: Literal["auto"] | MeshSettings = "auto"
    """How a slice splits its work; "auto" chooses for the model, the chips and their memory."""
    table: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Rows of the sharding table that differ: logical axis to mesh axes."""
    slots: int | None = Field(None, gt=0)
    """Pictures denoised together; left out: of `per_device_batch_size`, or 4, and fewer where
    memory holds no more. What is set and does not fit is refused with the number that does."""
    per_device_batch_size: float | None = Field(None, gt=0)
    """Slots a device; may be a fraction: 0.25 on 4 devices is one picture over four."""
    elastic: bool = True
    """Whether a slice also works on several pictures side by side, where no weight has to move and
    its model's `batching` is "fast"."""
    precision: Literal["default", "high", "highest"] = "default"
    """Of matrix products of float32 on accelerators that have faster, coarser ones."""
    flags: Literal["auto"] | tuple[str, ...] = "auto"
    """For XLA and libtpu, besides those that are known to help this model on these chips, and in
    place of those of the same name; "auto": these alone."""
    batch_sizes: tuple[int, ...] = ()
    """Compiled batch sizes where its model's `batching` is "fast", 1 always among them; empty: 1,
    2, 4, … up to slots."""
    max_compiling: int = Field(1, gt=0)
    """Jobs at the same time whose programs have to be compiled; further ones wait, and jobs whose
    programs are there go before them."""
    metrics_port: int | None = Field(None, ge=0, le=65535)
    """Where the pool tells how it is: /healthz, /readyz and /metrics; 0: any free port, None: no
    such page."""
    preview_every_s: float = Field(1, ge=0)
    """Of each job that runs; 0: no previews."""
    drain_s: float = Field(30, gt=0)
    """From SIGTERM to the end at the most. Jobs that end in half of it may; the others are put
    aside, for other pools to go on with."""
    snapshot_share: float = Field(0.01, ge=0, lt=1)
    """Of the time that steps take, for keeping how far pictures are, and as much again for putting
    jobs aside for others; 0: only when the pool drains."""
    store_patience_s: float = Field(30, ge=0)
    """How long a pool holds a finished file that the store does not take, and tries again; then the
    attempt is given up, and made again from what is kept of it. Reading waits as long."""
    quantum_s: float = Field(5, gt=0)
    """How long a job runs at least before it may be put aside for one of higher priority, or one
    that would miss its deadline; inf: none is."""
    preemption_ratio: float = Field(4, ge=1)
    """How many times as long as that one takes it would have to wait for a slot, or more: so that
    clips are put aside for pictures, and not pictures for each other."""


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix="ATELIER_",
        env_nested_delimiter="__",
        env_parse_none_str="null",
        extra="forbid",
        frozen=True,
    )

    state_dir: Path = Path(".atelier")
    """Queue, outputs and compile cache of a single machine lie under it."""
    compile_cache: Path | None = None
    """Where pools keep compiled programs for the next start; left out: below `state_dir`. Pools of
    several machines may share one."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"
    """"json": one object a line, for whoever collects logs."""
    redis: RedisSettings = RedisSettings()
    server: ServerSettings = ServerSettings()
    limits: LimitSettings = LimitSettings()
    queue: QueueSettings = QueueSettings()
    store: StoreSettings = StoreSettings()
    webhooks: WebhookSettings = WebhookSettings()
    tracing: TracingSettings = TracingSettings()
    tenants: dict[str, TenantSettings] = Field(default_factory=dict)
    """By name; `"*"` is all that are not named."""
    models: dict[str, ModelSettings] = Field(default_factory=dict)
    pools: dict[str, PoolSettings] = Field(default_factory=dict)

    @property
    def store_url(self) -> str:
        return self.store.url or str((self.state_dir / "outputs").resolve())

    def tenant(self, name: str) -> TenantSettings:
        return self.tenants.get(name) or self.tenants.get("*") or TenantSettings()

    @property
    def tenant_classes(self) -> list[str]:
        """All that metrics may tell of."""
        named = {tenant.metrics_class for tenant in self.tenants.values()}
        return sorted(named | {TenantSettings().metrics_class})

    @property
    def compile_folder(self) -> Path:
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
        environment = StrictEnvironment(settings_cls)
        return init_settings, environment, TomlConfigSettingsSource(settings_cls, config_file())


class StrictEnvironment(EnvSettingsSource):
    """The environment, in which a misspelt ATELIER_ variable is an error like any other key."""

    def __call__(self) -> dict[str, Any]:
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
