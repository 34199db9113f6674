"""The Helm chart, from the same manifests as the overlays: `make chart` writes what is generated.

The manifests are rendered by kustomize once for each choice that values leave open, with a token in
place of each value; where renderings differ the template has a condition, and where a token stands
an expression. `_helpers.tpl`, the ConfigMaps, the ComputeClass and the test are written by hand.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import yaml

from tools import rules
from tools.cluster.machines import MACHINES, Machine
from tools.cluster.merging import Case, Choice, Dumper, Merger, plain, scalar
from tools.cluster.overlay import K8S, renderer, write
from tools.cluster.values import Site, Values

CHART = K8S.parent / "helm" / "atelier"
FORMS = ("tpu", "slice", "gpu", "gpus")
CAPACITY = ("none", "some", "spot")
WHERE = (
    Choice("$.Values.weights", ("gcs-fuse", "hyperdisk-ml", "pvc")),
    Choice("$.Values.redis", ("pod", "memorystore")),
    Choice("$tracing", ("false", "true")),
)
"""Choices for a whole cluster."""
OF_POOLS = (Choice("$machine.form", FORMS), Choice("$capacity", CAPACITY))
"""Choices for a pool."""
LOCAL = "config.kubernetes.io/local-config"
SUM = "checksum/config"
TOKEN = re.compile(r"zz-(\w+?)(?:-\d+)?-zz")
ENV = '(include "atelier.env" $)'
OF_MODEL = '(dict "model" . "Files" $.Files)'
EXPRESSIONS: Mapping[str, str] = {
    "namespace": "{{ $.Release.Namespace }}",
    "place": "{{ $place }}",
    "pool": "{{ $pool }}",
    "model": "{{ .name }}",
    "share": "{{ $share }}",
    "min": "{{ .min | default 0 }}",
    "max": "{{ .max | default 4 }}",
    "accelerator": "{{ $machine.accelerator }}",
    "topology": "{{ $machine.topology }}",
    "chips": "{{ $machine.chips }}",
    "hosts": "{{ $machine.hosts }}",
    "cpu": "{{ $machine.cpu }}",
    "cpulimit": "{{ $machine.cpu_limit }}",
    "memory": "{{ $machine.memory_gib }}",
    "memorylimit": "{{ $machine.memory_limit_gib }}",
    "frontendsum": f'{{{{ print {ENV} (include "atelier.frontend" $) | sha256sum }}}}',
    "poolsum": f'{{{{ print {ENV} (include "atelier.pool-toml" {OF_MODEL}) | sha256sum }}}}',
    "redishost": "{{ $.Values.redis_host }}",
    **{
        name.replace("_", ""): f"{{{{ $site.{name} }}}}"
        for name in ("project", "zone", "registry", "tag", "bucket", "weights_bucket", "store")
    },
    "weightsdisk": "{{ $site.weights_disk }}",
    "loadbalancer": "{{ $site.load_balancer }}",
    "serviceaccount": "{{ $site.service_account }}",
    "prometheus": "{{ $site.prometheus }}",
}
"""Expression of the template by the name of its token."""
HEAD = """\
{{- /* Written by `make chart` from deploy/k8s. */ -}}
{{- $site := include "atelier.site" $ | fromYaml -}}
{{- $tracing := $.Values.tracing | toString -}}
"""
EACH_POOL = f"""\
{{{{- $place := include "atelier.place" $ -}}}}
{{{{- range $.Values.models }}}}
{{{{- $machine := include "atelier.machine" {OF_MODEL} | fromYaml }}}}
{{{{- $pool := include "atelier.pool" . }}}}
{{{{- $share := include "atelier.share" . }}}}
{{{{- $capacity := include "atelier.capacity" . }}}}
"""

Object = dict[str, Any]

NUMBERS = ("zz-min-zz", "zz-max-zz", "zz-hosts-zz")
"""Tokens of what is a number in YAML, too."""


class _Quoting(Dumper):
    """YAML in which tokens stand between quotation marks, but for numbers."""


def _quoted(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    if TOKEN.search(text) and text not in NUMBERS and "\n" not in text:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"')
    return scalar(dumper, text)


_Quoting.add_representer(str, _quoted)


def quoting(value: Any) -> str:
    """Return YAML with tokens in quotation marks."""
    return yaml.dump(value, Dumper=_Quoting, sort_keys=False, width=10**6, allow_unicode=True)


def token(name: str, number: int | None = None) -> str:
    """Return what stands for a value while manifests are rendered."""
    return f"zz-{name}-zz" if number is None else f"zz-{name}-{number}-zz"


@dataclass(frozen=True)
class _Machine:
    """Tokens of a machine; its form alone is real."""

    form: str
    kind: str
    type: str = ""
    accelerator: str = token("accelerator")
    topology: str = token("topology")
    chips: str = token("chips")
    hosts: str = token("hosts")
    cpu: str = token("cpu")
    cpu_limit: str = token("cpulimit")
    memory_gib: str = token("memory")
    memory_limit_gib: str = token("memorylimit")


@dataclass(frozen=True)
class _Model:
    """Tokens of a model."""

    pool_name: str
    machine: Any
    capacity: Sequence[str]
    name: str = token("model")
    share: str = token("share")
    min: str = token("min")
    max: str = token("max")

    @property
    def on_spot(self) -> bool:
        return "spot" in self.capacity

    def toml(self) -> str:
        return ""


@dataclass(frozen=True)
class _Values:
    """Tokens of a cluster, for one case of the choices."""

    weights: str
    redis: str
    traced: str
    models: Sequence[Any]
    namespace: str = token("namespace")
    place: str = token("place")
    about: str = ""
    rules: str = "none"
    redis_host: str = ""
    site: Site = field(default_factory=Site)
    env: Mapping[str, str] = field(default_factory=dict)
    frontend: str = ""

    @property
    def tracing(self) -> bool:
        return self.traced == "true"


POOLS: Sequence[Case] = [*product(FORMS, CAPACITY)]
EXAMPLES = {"some": ("on-demand",), "spot": ("spot", "on-demand"), "none": ()}


def _models() -> Iterator[_Model]:
    """Yield a model for each case of a pool, numbered in its pool's name."""
    for number, (form, capacity) in enumerate(POOLS):
        machine = _Machine(form, "cuda" if form.startswith("gpu") else "tpu")
        yield _Model(token("pool", number), machine, EXAMPLES[capacity])


def renderings() -> Mapping[Case, Sequence[Object]]:
    """Render the manifests in each case of the whole cluster."""
    with TemporaryDirectory() as folder:
        k8s = Path(shutil.copytree(K8S, Path(folder) / "k8s"))
        _tokens_for_places(k8s)
        found = {}
        for case in product(*(choice.values for choice in WHERE)):
            weights, in_redis, traced = case
            values = cast(Values, _Values(weights, in_redis, traced, [*_models()]))
            found[case] = [*_rendered(write(values, "chart", k8s))]
        return found


def _tokens_for_places(k8s: Path) -> None:
    """Put tokens where manifests have places for a site to fill in."""
    site = k8s / "site" / "site.env"
    names = [line.split("=")[0] for line in site.read_text().splitlines() if "=" in line]
    lines = [f"{name}={token(name.replace('_', ''))}\n" for name in names if name.islower()]
    site.write_text("".join(lines))
    disk = k8s / "components" / "weights-hyperdisk-ml" / "disk.env"
    disk.write_text(f"disk={token('weightsdisk')}\nzone={token('zone')}\n")
    for place, name in (("REDIS_HOST", "redishost"), ("=PROJECT", "project")):
        for file in (k8s / "components").rglob("*.env"):
            sign = "=" if place.startswith("=") else ""
            file.write_text(file.read_text().replace(place, f"{sign}{token(name)}"))


def _rendered(folder: Path) -> Iterator[Object]:
    """Yield what kustomize makes of a folder, without what is read by kustomize alone."""
    text = subprocess.run([*renderer(), str(folder)], check=True, capture_output=True, text=True)
    objects = [*yaml.load_all(text.stdout, yaml.CSafeLoader)]
    for name in _hashed(objects):
        objects = json.loads(json.dumps(objects).replace(f'"{name}"', f'"{name[:-11]}"'))
    for one in objects:
        if LOCAL not in one["metadata"].get("annotations", {}):
            yield one


def _hashed(objects: Iterable[Object]) -> Iterator[str]:
    """Yield names that end with a hash of what a ConfigMap has."""
    for one in objects:
        if one["kind"] == "ConfigMap" and re.search(r"-[a-z0-9]{10}$", one["metadata"]["name"]):
            yield one["metadata"]["name"]


def _digest(objects: Iterable[Object], name: str) -> str:
    """Return a digest of a ConfigMap that is the same everywhere."""
    (data,) = (
        one["data"]
        for one in objects
        if one["kind"] == "ConfigMap" and one["metadata"]["name"] == name
    )
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def _summed(one: Object, digest: str) -> Object:
    """Return a workload whose pods start anew with other settings, as by a hash in a name."""
    spec = one["spec"]
    templates = [spec["template"]] if "template" in spec else [*_of_slice(spec)]
    for template in templates:
        annotations = template["metadata"].get("annotations", {})
        metadata = {**template["metadata"], "annotations": {SUM: digest, **annotations}}
        template["metadata"] = dict(sorted(metadata.items()))
    return one


def _of_slice(spec: Object) -> Iterator[Object]:
    """Yield the templates of a LeaderWorkerSet."""
    for role in ("leader", "worker"):
        yield spec["leaderWorkerTemplate"][f"{role}Template"]


def generated() -> Mapping[str, str]:
    """Return the generated files of the chart, by their paths in it."""
    cluster: dict[tuple[str, str], dict[Case, Object]] = {}
    pools: dict[tuple[str, str], dict[Case, Object]] = {}
    for case, objects in renderings().items():
        for one in objects:
            name = one["metadata"]["name"]
            match = re.search(r"zz-pool-(\d+)-zz", name)
            if match is None:
                if one["kind"] == "Deployment":
                    one = _summed(one, token("frontendsum"))
                if one["kind"] == "StatefulSet":
                    one = _summed(one, _digest(objects, "atelier-redis"))
                cluster.setdefault((one["kind"], name), {})[case] = one
                continue
            if one["kind"] in ("Deployment", "LeaderWorkerSet"):
                one = _summed(one, token("poolsum"))
            text = json.dumps(one).replace(match[0], token("pool"))
            key = (one["kind"], name.replace(match[0], token("pool")))
            pools.setdefault(key, {})[(*case, *POOLS[int(match[1])])] = json.loads(text)
    where = [*product(*(choice.values for choice in WHERE))]
    everywhere = [(*case, *pool) for case in where for pool in POOLS]
    by_hand = {("ConfigMap", "atelier-env"), ("ConfigMap", "atelier-frontend")}
    by_hand |= {("ConfigMap", f"atelier-pool-{token('pool')}")}
    return {
        "Chart.yaml": _chart(),
        "values.schema.json": schema(),
        "files/machines.yaml": plain(_machines()),
        "files/frontend.toml": (K8S / "base" / "frontend.toml").read_text(),
        "files/rules-managed.yaml": rules.manifest("Rules"),
        "files/rules-operator.yaml": rules.manifest("PrometheusRule"),
        "templates/cluster.yaml": HEAD
        + "".join(
            filled_in(Merger(WHERE, quoting).document(variants, where))
            for key, variants in cluster.items()
            if key not in by_hand and key[0] != "Namespace"
        ),
        "templates/pools.yaml": HEAD
        + EACH_POOL
        + "".join(
            filled_in(Merger((*WHERE, *OF_POOLS), quoting).document(variants, everywhere))
            for key, variants in pools.items()
            if key not in by_hand and key[0] != "ComputeClass"
        )
        + "{{- end }}\n",
        "templates/_env.tpl": _env(cluster[("ConfigMap", "atelier-env")], where),
    }


def _env(variants: Mapping[Case, Object], cases: Iterable[Case]) -> str:
    """Return the named template of what all pods read."""
    data = {case: one["data"] for case, one in variants.items()}
    body = filled_in(Merger(WHERE, quoting).document(data, cases, head=""))
    return f'{{{{- define "atelier.env-base" -}}}}\n{HEAD}{body}{{{{- end -}}}}\n'


def filled_in(text: str) -> str:
    """Put expressions in place of tokens; braces round one would be taken for an expression's."""
    text = re.sub(r"\{(zz-(\w+)-zz)\}", r'{{ "{" }}\1{{ "}" }}', text)
    return TOKEN.sub(lambda match: EXPRESSIONS[match[1]], text)


def _machines() -> Object:
    """Return the table of machines as the template reads it."""
    return {
        chip: {topology: _row(one) for topology, one in by_topology.items()}
        for chip, by_topology in MACHINES.items()
    }


def _row(machine: Machine) -> Object:
    """Return a row of the table."""
    return {**asdict(machine), "cpu_limit": machine.cpu_limit, "form": machine.form}


def _chart() -> str:
    """Return the chart's own description."""
    project = tomllib.loads((K8S.parents[1] / "pyproject.toml").read_text())["project"]
    return plain(
        {
            "apiVersion": "v2",
            "name": "atelier",
            "description": project["description"],
            "type": "application",
            "version": project["version"],
            "appVersion": project["version"],
            "kubeVersion": ">=1.30.0-0",
        }
    )


def schema() -> str:
    """Return what Helm holds values to: the same as `tools.cluster.values`."""
    found = Values.model_json_schema()
    model = found["$defs"]["Model"]["properties"]
    model["chip"]["enum"] = [*MACHINES]
    model["topology"]["enum"] = sorted({one for chip in MACHINES.values() for one in chip})
    found["properties"]["global"] = {"type": "object"}
    return (
        json.dumps({"$schema": "http://json-schema.org/draft-07/schema#", **found}, indent=2) + "\n"
    )


def main() -> None:
    """Write the generated files."""
    for path, content in generated().items():
        file = CHART / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)


if __name__ == "__main__":
    main()
