"""The file of values: which models a cluster serves, on what, and how many pools of each."""

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
"""Time to drain that fits into the grace of pods."""
SPOT_DRAIN_S = 10
"""Time to drain on a Spot machine: of the 30 s from its notice GKE leaves 15 to pods like these."""
QUOTABLE = r'^[^"\\\x00-\x1f\x7f]+$'
"""Pattern of texts that stand between quotation marks in PromQL and YAML."""
LINE = r"^[^\n\r]*$"
"""Pattern of texts of one line."""
LABEL = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"
"""Pattern of Kubernetes' names and labels."""
LONGEST_LABEL = 63
"""Characters of a label's value."""
LONGEST_POOL = 36
"""Characters of a pool's name: pods of a LeaderWorkerSet have a label of it with a hash."""
OF_MODEL = ("source", "dtype", "objective_s", "cold_start_s", "warmup")
OF_POOL = ("model", "mesh", "slots", "hosts", "metrics_port")
"""Settings that the list has keys of its own for."""
OF_SEVERAL = ("also", "by_turns")
"""Settings of a pool that serves several models, where an entry is one."""


Quotable = Annotated[str, Field(pattern=f"^$|{QUOTABLE}")]


class ValuesError(Exception):
    """The file cannot be used; the message names the key and says what is wrong."""


class Part(BaseModel):
    """Base of the parts: frozen, without unknown keys."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, populate_by_name=True
    )


class Reservation(Part):
    """Machines of a reservation."""

    reservation: str = Field(pattern=r"^(projects/[a-z0-9:.-]+/reservations/)?[a-z0-9-]+$")
    """The reservation's name, or projects/PROJECT/reservations/NAME of another project's."""


Section = Literal["loras", "upscalers", "output", "safety"]
Capacity = Literal["spot", "on-demand", "flex-start"] | Reservation


class Plan(Part):
    """Question to `atelier plan`, for a share of waiting work that nobody has written down."""

    model: str
    """Name of the architecture, as `atelier plan --model` has it."""
    request: dict[str, int] = Field(default_factory=dict)
    """Size of a usual request: width, height, num_frames."""


class Model(Part):
    """A model, and the pools that serve it."""

    name: str = Field(pattern=QUOTABLE)
    """Name by which clients ask for it."""
    source: str = Field(min_length=1)
    """Checkpoint: a folder below /weights, or a hub id."""
    chip: str
    """Kind of chip, as `atelier plan` has it."""
    topology: Annotated[str, Field(pattern=r"^\d+(x\d+)*$", coerce_numbers_to_str=True)]
    """Chips of one pool: the topology of a TPU slice, or the number of GPUs."""
    pool: str = Field("", pattern=f"^$|{LABEL}", max_length=LONGEST_POOL)
    """Name of its pool. Left out: the model's, as Kubernetes takes names."""
    layout: Literal["auto"] | Annotated[dict[str, int | dict[str, int]], Field(min_length=1)] = (
        "auto"
    )
    """Layout of the model on these chips (`pools.NAME.mesh`); "auto": the pool chooses it."""
    dtype: str = Field("bfloat16", min_length=1)
    """Type of its weights and of what is calculated."""
    slots: int | None = Field(None, gt=0)
    """Images that one pool denoises together. Left out: as memory allows."""
    warmup: list[dict[str, int]] = Field(default_factory=list)
    """Sizes that a pool is ready for. Left out: the model's own."""
    min: int = Field(0, ge=0)
    """Pools that are always there."""
    max: int = Field(4, gt=0)
    """Pools at the most."""
    objective_s: float | None = Field(None, gt=0)
    """Seconds of waiting work that one more pool comes for, and the aim of alerts. Left out: by
    `plan`."""
    plan: Plan | None = None
    """Request that the share is reckoned from where `objective_s` is left out."""
    cold_start_s: float = Field(2700, gt=0)
    """Time that a first pool may take to be ready: a machine, its weights, and programs that no
    cache has yet."""
    capacity: list[Capacity] = Field(default_factory=list)
    """Ways to get machines, in the order in which they are tried, by a ComputeClass: spot,
    on-demand, flex-start, {reservation: NAME}. Left out: node pools that somebody has made."""
    model_settings: dict[str, JsonValue] = Field(
        default_factory=dict, json_schema_extra={"propertyNames": {"not": {"enum": [*OF_MODEL]}}}
    )
    """Further settings of `[models.NAME]`."""
    pool_settings: dict[str, JsonValue] = Field(
        default_factory=dict,
        json_schema_extra={"propertyNames": {"not": {"enum": [*OF_POOL, *OF_SEVERAL]}}},
    )
    """Further settings of `[pools.NAME]`, but for those of several models (`also`, `by_turns`):
    such a pool wants a settings file and manifests of its own."""
    sections: dict[Section, dict[str, JsonValue]] = Field(default_factory=dict)
    """Further sections of the pool's settings."""

    @model_validator(mode="after")
    def _known(self) -> Model:
        there = MACHINES.get(self.chip)
        if there is None:
            raise ValueError(f"chip {self.chip!r} is none of {', '.join(MACHINES)}")
        if self.topology not in there:
            raise ValueError(f"topology {self.topology!r} is none of {', '.join(there)}")
        if not self.pool_name:
            raise ValueError(f"name {self.name!r} has neither a letter nor a digit; give it a pool")
        if len(self.pool_name) > LONGEST_POOL:
            raise ValueError(f"name {self.name!r} is too long for a pool's; give it a pool")
        if self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        own = [f"model_settings.{key}" for key in OF_MODEL if key in self.model_settings]
        own += [f"pool_settings.{key}" for key in OF_POOL if key in self.pool_settings]
        if own:
            raise ValueError(f"{', '.join(own)}: the model itself has a key for it")
        if several := [key for key in OF_SEVERAL if key in self.pool_settings]:
            raise ValueError(
                f"pool_settings.{several[0]}: an entry is a pool of one model, and has settings of "
                "no other; leave it out, and give a pool of several a settings file and manifests "
                "of its own"
            )
        drain_s = self.pool_settings.get("drain_s", 0)
        most_s = SPOT_DRAIN_S if self.on_spot else DRAIN_S
        if not isinstance(drain_s, int | float) or drain_s > most_s:
            raise ValueError(f"pool_settings.drain_s: pods have time for {most_s} s at the most")
        if self.objective_s:
            self._check_settings()
        return self

    def _check_settings(self) -> None:
        """Read what comes of it as a pool does. Raises: ValueError, ValidationError."""
        told = tomllib.loads(self.toml())
        ModelSettings.model_validate(told["models"][self.name])
        PoolSettings.model_validate(told["pools"][self.pool_name])
        for name in self.sections:
            kind: Any = Settings.model_fields[name].annotation
            TypeAdapter(kind).validate_python(told[name])

    @property
    def pool_name(self) -> str:
        """Name of its pool in settings and manifests."""
        return self.pool or SLUG.sub("-", self.name.lower()).strip("-")

    @property
    def share(self) -> str:
        """A pool's share of waiting work in seconds, as KEDA takes numbers."""
        return as_text(self.objective_s)

    @property
    def machine(self) -> Machine:
        """Machine that a pod of it is on."""
        return MACHINES[self.chip][self.topology]

    @property
    def on_spot(self) -> bool:
        """True if its machines may be taken away."""
        return "spot" in self.capacity

    def toml(self) -> str:
        """Return the pool's settings."""
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


class Site(Part):
    """Names of a site; those that are left out are after the project."""

    project: Quotable = ""
    """Google Cloud project."""
    region: Quotable = ""
    """Region of the registry."""
    tag: Quotable = ""
    """Tag of the images. Left out: the chart's version."""
    registry: Quotable = ""
    """Registry of the images."""
    bucket: Quotable = ""
    """Bucket of outputs and compiled programs."""
    weights_bucket: Quotable = ""
    """Bucket of the weights."""
    store: Quotable = ""
    """Address of the store. Left out: in the bucket."""
    service_account: Quotable = ""
    """Google service account that front ends and pools act as."""
    prometheus: Quotable = ""
    """Address at which KEDA asks Prometheus."""
    zone: Quotable = ""
    """Zone of a Hyperdisk ML with the weights."""
    weights_disk: Quotable = ""
    """Hyperdisk ML with the weights."""
    load_balancer: Quotable = ""
    """Address of the Gateway, which its load balancer writes behind the client's. Left out: one of
    Google's networks."""


class Values(Part):
    """All of a cluster."""

    about: str = Field("", pattern=LINE)
    """Line that says what this is."""
    namespace: str = Field("atelier", pattern=LABEL, max_length=LONGEST_LABEL)
    """Namespace of everything. Helm's own goes before it."""
    cluster: Quotable = ""
    """Name of the cluster, by which its series are told from those of others in one project of
    Google's Prometheus. Left out: there is one."""
    models: list[Model] = Field(min_length=1)
    """Models, each with pools of its own."""
    weights: Literal["gcs-fuse", "hyperdisk-ml", "pvc"] = "gcs-fuse"
    """Place that weights are read from: a bucket, a disk that many machines read, or a volume that
    a snapshot `atelier-weights` makes."""
    redis: Literal["pod", "memorystore"] = "pod"
    """Place of the queue: a pod with a disk, or a Memorystore."""
    redis_host: Quotable = ""
    """Address of the Memorystore; kustomize has it from components/memorystore."""
    tracing: bool = False
    """Whether spans are sent to Managed OpenTelemetry for GKE."""
    rules: Literal["managed", "operator", "none"] = "none"
    """Recording rules and alerts: for Google's Prometheus, for the Prometheus Operator, or none."""
    site: Site = Site()
    """Names of the site; kustomize has them from site/site.env."""
    env: dict[str, Annotated[str, Field(pattern=LINE)]] = Field(default_factory=dict)
    """Further settings of front ends and pools alike, as environment variables."""
    frontend: str = ""
    """Settings of front ends, TOML, in place of base/frontend.toml."""

    @property
    def place(self) -> str:
        """Matchers of this cluster's series, beside those of others."""
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
        lines = [_said(dict(one)) for one in error.errors()]
        raise ValuesError("\n".join(f"{file}: {line}" for line in lines)) from error


def _said(error: Mapping[str, Any]) -> str:
    """Return one of Pydantic's errors in a line, with the key first."""
    key = ".".join(str(part) for part in error["loc"])
    message = str(error["msg"]).removeprefix("Value error, ")
    return f"{key}: {message}" if key else message


def _table(name: str, settings: Mapping[str, Any]) -> str:
    """Return a table of TOML; the chart's template `atelier.table` writes the same."""
    lines = [f"{_key(key)} = {as_text(settings[key])}" for key in sorted(settings)]
    return "\n".join([f"[{name}]", *lines, ""])


def _key(name: str) -> str:
    """Return a key of TOML, in quotes where it wants them."""
    return name if BARE.fullmatch(name) else _as_json(name)


def as_text(value: Any) -> str:
    """Return a value of TOML: JSON, but for the sign between a key and its value."""
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
    """Return a text, number or boolean as Helm writes it: two line ends of Unicode are escapes."""
    text = json.dumps(value, ensure_ascii=False)
    return text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
