"""Schema of the file of values: models of a cluster, their machines, and number of pools."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from service.settings.models import ModelSettings
from service.settings.pools import PoolSettings
from service.settings.settings import Settings
from tools.cluster.machines import MACHINES, Machine

SLUG = re.compile(r"[^a-z0-9]+")
BARE = re.compile(r"[A-Za-z0-9_-]+")
DRAIN_S = 30
"""Drain time that fits into a pod's grace period."""
SPOT_DRAIN_S = 10
"""Drain time on a Spot machine: of the 30 s notice, GKE leaves 15 s to these pods."""
QUOTABLE = r'^[^"\\\x00-\x1f\x7f]+$'
"""Pattern of texts that can be quoted in PromQL and YAML."""
LINE = r"^[^\n\r]*$"
"""Pattern of single-line texts."""
REDIS_URL = r"^$|^rediss?(\+sentinel)?://[^\s\"\\]+$"
"""Pattern of addresses of Redis."""
NETWORK = r"^$|^[0-9a-fA-F.:]+/[0-9]+$"
"""Pattern of networks as CIDR."""
SCHEDULE = r"^$|^[0-9*/,A-Za-z-]+( [0-9*/,A-Za-z-]+){4}$"
"""Pattern of cron's schedules."""
LABEL = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"
"""Pattern of Kubernetes names and labels."""
LONGEST_LABEL = 63
"""Maximum characters of a label's value."""
LONGEST_POOL = 36
"""Maximum characters of a pool's name, which becomes a label of a LeaderWorkerSet's pods, with a
hash."""
OF_MODEL = ("source", "dtype", "objective_s", "cold_start_s", "warmup")
OF_POOL = ("model", "mesh", "slots", "hosts", "metrics_port")
"""Settings that have keys of their own in an entry."""
OF_SEVERAL = ("also", "by_turns")
"""Pool settings for several models; an entry has only one."""


Quotable = Annotated[str, Field(pattern=f"^$|{QUOTABLE}")]


class ValuesError(Exception):
    """Error of an invalid values file; the message names the key."""


class Part(BaseModel):
    """Base of the sections: frozen, rejects unknown keys."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, populate_by_name=True
    )


class Reservation(Part):
    """Machines of a Compute Engine reservation."""

    reservation: str = Field(pattern=r"^(projects/[a-z0-9:.-]+/reservations/)?[a-z0-9-]+$")
    """The reservation's name, or projects/PROJECT/reservations/NAME in another project."""


Section = Literal["loras", "embeddings", "upscalers", "output", "safety"]
Capacity = Literal["spot", "on-demand", "flex-start"] | Reservation


class Plan(Part):
    """Input of `atelier plan`, which computes a missing `objective_s`."""

    model: str
    """Name of the architecture, as in `atelier plan --model`."""
    request: dict[str, int] = Field(default_factory=dict)
    """Size of a typical request: width, height, num_frames."""


class Model(Part):
    """A model, and the pool that serves it."""

    name: str = Field(pattern=QUOTABLE)
    """Name of the model in requests."""
    source: str = Field(min_length=1)
    """Checkpoint: a folder below /weights, or a hub id."""
    chip: str
    """Kind of chip, as in `atelier plan`."""
    topology: Annotated[str, Field(pattern=r"^\d+(x\d+)*$", coerce_numbers_to_str=True)]
    """Chips of one worker: the topology of a TPU slice, or the number of GPUs."""
    pool: str = Field("", pattern=f"^$|{LABEL}", max_length=LONGEST_POOL)
    """Name of its pool. Default: the model's name as a Kubernetes label."""
    layout: Literal["auto"] | Annotated[dict[str, int | dict[str, int]], Field(min_length=1)] = (
        "auto"
    )
    """Layout of the model on these chips (`pools.NAME.mesh`); "auto": chosen by the worker."""
    dtype: str = Field("bfloat16", min_length=1)
    """Data type of weights and activations."""
    slots: int | None = Field(None, gt=0)
    """Images that one worker denoises together. Default: limited by memory."""
    warmup: list[dict[str, int]] = Field(default_factory=list)
    """Sizes compiled before a worker is ready. Default: the model's own."""
    min: int = Field(0, ge=0)
    """Minimum number of workers."""
    max: int = Field(4, gt=0)
    """Maximum number of workers."""
    surge: bool = False
    """Whether a change starts the new worker before the old one drains, so that no job waits. It
    takes the machines of one more worker. Default: the old one drains first."""
    objective_s: float | None = Field(None, gt=0)
    """Seconds of waiting work per worker above which another is added; also the objective of
    alerts. Default: computed from `plan`."""
    plan: Plan | None = None
    """Typical request for computing a missing `objective_s`."""
    cold_start_s: float = Field(2700, gt=0)
    """Maximum time until a first worker is ready: provisioning a machine, loading weights, and
    compiling without a cache."""
    capacity: list[Capacity] = Field(default_factory=list)
    """Machine sources for a ComputeClass, in order of preference: spot, on-demand, flex-start,
    {reservation: NAME}. Default: existing node pools."""
    model_settings: dict[str, JsonValue] = Field(
        default_factory=dict, json_schema_extra={"propertyNames": {"not": {"enum": [*OF_MODEL]}}}
    )
    """Further settings of `[models.NAME]`."""
    pool_settings: dict[str, JsonValue] = Field(
        default_factory=dict,
        json_schema_extra={"propertyNames": {"not": {"enum": [*OF_POOL, *OF_SEVERAL]}}},
    )
    """Further settings of `[pools.NAME]`. Pools of several models (`also`, `by_turns`) are
    excluded: they need a handwritten settings file and manifests."""
    sections: dict[Section, dict[str, JsonValue]] = Field(default_factory=dict)
    """Further sections of the pool's settings."""

    @model_validator(mode="after")
    def _check_model(self) -> Model:
        topologies = MACHINES.get(self.chip)
        if topologies is None:
            raise ValueError(f"chip {self.chip!r} must be one of {', '.join(MACHINES)}")
        if self.topology not in topologies:
            raise ValueError(f"topology {self.topology!r} must be one of {', '.join(topologies)}")
        if not self.pool_name:
            raise ValueError(f"name {self.name!r} has neither a letter nor a digit; give it a pool")
        if len(self.pool_name) > LONGEST_POOL:
            raise ValueError(f"name {self.name!r} is too long for a pool's; give it a pool")
        if self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        duplicates = [f"model_settings.{key}" for key in OF_MODEL if key in self.model_settings]
        duplicates += [f"pool_settings.{key}" for key in OF_POOL if key in self.pool_settings]
        if duplicates:
            raise ValueError(f"{', '.join(duplicates)}: the model itself has a key for it")
        if several := [key for key in OF_SEVERAL if key in self.pool_settings]:
            raise ValueError(
                f"pool_settings.{several[0]}: an entry is a pool of one model, and has settings of "
                "no other; leave it out, and give a pool of several a settings file and manifests "
                "of its own"
            )
        drain_s = self.pool_settings.get("drain_s", 0)
        max_s = SPOT_DRAIN_S if self.on_spot else DRAIN_S
        if not isinstance(drain_s, int | float) or drain_s > max_s:
            raise ValueError(f"pool_settings.drain_s: pods have time for at most {max_s} s")
        if self.objective_s:
            self._check_settings()
        return self

    def _check_settings(self) -> None:
        """Validate the resulting settings like a worker. Raises: ValueError, ValidationError."""
        settings = tomllib.loads(self.toml())
        ModelSettings.model_validate(settings["models"][self.name])
        PoolSettings.model_validate(settings["pools"][self.pool_name])
        for name in self.sections:
            kind: Any = Settings.model_fields[name].annotation
            TypeAdapter(kind).validate_python(settings[name])

    @property
    def pool_name(self) -> str:
        """Name of its pool in settings and manifests."""
        return self.pool or SLUG.sub("-", self.name.lower()).strip("-")

    @property
    def share(self) -> str:
        """Objective of the model in seconds, formatted for KEDA."""
        return as_text(self.objective_s)

    @property
    def machine(self) -> Machine:
        """GKE machine of the model's pods."""
        return MACHINES[self.chip][self.topology]

    @property
    def on_spot(self) -> bool:
        """True if the model's machines may be preempted."""
        return "spot" in self.capacity

    @property
    def rollout(self) -> Mapping[str, Any]:
        """Limits of a rolling update: a worker more, or one less."""
        return {"maxSurge": int(self.surge), "maxUnavailable": int(not self.surge)}

    def toml(self) -> str:
        """Return the pool's settings as TOML."""
        model = {
            "source": self.source,
            "dtype": self.dtype,
            "objective_s": self.objective_s,
            "cold_start_s": self.cold_start_s,
            **({"warmup": self.warmup} if self.warmup else {}),
            **self.model_settings,
        }
        pool = {
            "model": self.name,
            "mesh": self.layout,
            "metrics_port": 9100,
            **({"slots": self.slots} if self.slots else {}),
            **({"drain_s": SPOT_DRAIN_S} if self.on_spot else {}),
            **(
                {"hosts": {"count": self.machine.hosts, "port": 8477}}
                if self.machine.form == "slice"
                else {}
            ),
            **self.pool_settings,
        }
        tables = [
            _table(f"models.{_key(self.name)}", model),
            _table(f"pools.{_key(self.pool_name)}", pool),
            *(_table(name, self.sections[name]) for name in sorted(self.sections)),
        ]
        return "\n".join(tables)


class Price(Part):
    """Price of a chip per hour, with its share of the machine."""

    standard: float | None = Field(None, gt=0)
    """Price on machines other than spot machines."""
    spot: float | None = Field(None, gt=0)
    """Price on spot machines."""


class Backup(Part):
    """Backups of Redis into the store."""

    schedule: str = Field("", pattern=SCHEDULE)
    """Times of backups, as five fields of cron in UTC. Default: no backups by themselves."""


class Site(Part):
    """Names of a site; missing ones are derived from the project."""

    project: Quotable = ""
    """Google Cloud project."""
    region: Quotable = ""
    """Region of the cluster and its registry; the usage ledger records it."""
    tag: Quotable = ""
    """Tag of the front ends' image. Default: the chart's version."""
    worker_tag: Quotable = ""
    """Tag of the workers' images. Default: `tag`."""
    registry: Quotable = ""
    """Registry of the images."""
    bucket: Quotable = ""
    """Bucket of outputs and compiled programs."""
    weights_bucket: Quotable = ""
    """Bucket of the weights."""
    store: Quotable = ""
    """Address of the object store. Default: in the bucket."""
    service_account: Quotable = ""
    """Google service account of front ends and workers."""
    prometheus: Quotable = ""
    """Address of Prometheus for KEDA."""
    zone: Quotable = ""
    """Zone of the Hyperdisk ML volume with the weights."""
    weights_disk: Quotable = ""
    """Hyperdisk ML volume with the weights."""
    load_balancer: Quotable = ""
    """Address of the Gateway, which its load balancer appends to the client's. Default: one of
    Google's networks."""


class Values(Part):
    """Values of a cluster: models, storage, Redis, monitoring and site."""

    about: str = Field("", pattern=LINE)
    """One-line description of the cluster."""
    namespace: str = Field("atelier", pattern=LABEL, max_length=LONGEST_LABEL)
    """Namespace of all objects. Helm's own namespace takes precedence."""
    cluster: Quotable = ""
    """Name of the cluster, which distinguishes its series in Google's Prometheus from those of
    other clusters of the project. Default: the project has one cluster."""
    models: list[Model] = Field(min_length=1)
    """Models, each with a pool of its own."""
    weights: Literal["gcs-fuse", "hyperdisk-ml", "pvc"] = "gcs-fuse"
    """Source of the weights: a bucket, a disk that many machines read, or a volume from the
    snapshot `atelier-weights`."""
    redis: Literal["pod", "sentinel", "memorystore", "external"] = "pod"
    """Redis of the queue: a pod with a disk, three pods with Sentinels, Memorystore, or another
    server of yours."""
    redis_host: Quotable = ""
    """Address of the Memorystore; kustomize reads it from components/memorystore."""
    redis_url: str = Field("", pattern=REDIS_URL)
    """Address of an external Redis or of its Sentinels (`redis.url` of the settings); kustomize
    reads it from components/redis-external."""
    redis_network: str = Field("", pattern=NETWORK)
    """Network of the servers of an external Redis, as CIDR, which front ends and workers may
    reach; kustomize reads it from components/redis-external."""
    tracing: bool = False
    """Whether to send spans to Managed OpenTelemetry for GKE."""
    tpu_root: bool = False
    """Whether workers run as root, in a namespace of their own with the suffix `-tpu`, for TPUs
    whose device files are root's; kustomize has components/tpu-root."""
    rules: Literal["managed", "operator", "none"] = "none"
    """Recording rules and alerts: for Google's Prometheus, for the Prometheus Operator, or none."""
    backup: Backup = Backup()
    """Backups of Redis into the store."""
    prices: dict[Annotated[str, Field(pattern=QUOTABLE)], Price] = Field(default_factory=dict)
    """Prices by kind of chip, for the dashboard of costs. Default: the examples of
    deploy/prometheus/rules/prices.yaml."""
    site: Site = Site()
    """Names of the site; kustomize reads them from site/site.env."""
    env: dict[str, Annotated[str, Field(pattern=LINE)]] = Field(default_factory=dict)
    """Further settings of front ends and workers, as environment variables."""
    frontend: str = ""
    """Settings of front ends in TOML, in place of base/frontend.toml."""

    @property
    def chip_prices(self) -> dict[tuple[str, bool], float]:
        """Price per hour by chip, and by whether the machine is a spot machine."""
        by_kind = {(chip, True): price.spot for chip, price in self.prices.items()}
        by_kind |= {(chip, False): price.standard for chip, price in self.prices.items()}
        return {machine: price for machine, price in by_kind.items() if price is not None}

    @property
    def place(self) -> str:
        """PromQL matchers of this cluster's series."""
        cluster = f', cluster="{self.cluster}"' if self.cluster else ""
        return f'namespace="{self.namespace}"{cluster}'

    @model_validator(mode="after")
    def _apart(self) -> Values:
        pools = [model.pool_name for model in self.models]
        if twice := sorted({name for name in pools if pools.count(name) > 1}):
            raise ValueError(f"models: several would have the pool {', '.join(twice)}")
        for model in self.models:
            if len(f"{self.namespace}.{model.pool_name}") > LONGEST_LABEL:
                raise ValueError(f"namespace and pool {model.pool_name!r} are too long together")
        return self


def read(file: Path) -> Values:
    """Read a file of values. Raises: ValuesError."""
    try:
        return Values.model_validate(yaml.safe_load(file.read_text()))
    except (OSError, yaml.YAMLError) as error:
        raise ValuesError(f"{file}: {error}") from error
    except ValidationError as error:
        lines = [_problem(dict(item)) for item in error.errors()]
        raise ValuesError("\n".join(f"{file}: {line}" for line in lines)) from error


def _problem(error: Mapping[str, Any]) -> str:
    """Format a Pydantic error on a line, with the key first."""
    key = ".".join(str(part) for part in error["loc"])
    message = str(error["msg"]).removeprefix("Value error, ")
    return f"{key}: {message}" if key else message


def _table(name: str, settings: Mapping[str, Any]) -> str:
    """Return a TOML table; the chart's template `atelier.table` writes the same."""
    lines = [f"{_key(key)} = {as_text(settings[key])}" for key in sorted(settings)]
    return "\n".join([f"[{name}]", *lines, ""])


def _key(name: str) -> str:
    """Return a TOML key, quoted if necessary."""
    return name if BARE.fullmatch(name) else _as_json(name)


def as_text(value: Any) -> str:
    """Return a TOML value: JSON, with `=` between keys and values."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(key)} = {as_text(value[key])}" for key in sorted(value))
        return f"{{{inner}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(as_text, value))}]"
    if value is None:
        raise ValueError("settings cannot be null; leave the key out")
    return _as_json(value)


def _as_json(value: Any) -> str:
    """Return JSON as Helm writes it, with U+2028 and U+2029 escaped."""
    text = json.dumps(value, ensure_ascii=False)
    return text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
