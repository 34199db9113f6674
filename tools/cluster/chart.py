"""Helm chart generated from the manifests of the overlays (`make chart`).

kustomize renders the manifests once for each combination of choices that the values leave open,
with tokens in place of values. The template has a condition where renderings differ, and an
expression in place of each token. `_helpers.tpl`, the ConfigMaps, the ComputeClass and the test are
written by hand.
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
from tools.cluster.values import Backup, Site, Values

CHART = K8S.parent / "helm" / "atelier"
REDIS_PLACES = ("REDIS_HOST", "REDIS_URL", "REDIS_NETWORK")
"""Placeholders of the components for a Redis outside of the cluster."""
FORMS = ("tpu", "slice", "gpu", "gpus")
CAPACITY = ("none", "some", "spot")
WEIGHTS = Choice("$.Values.weights", ("gcs-fuse", "hyperdisk-ml", "pvc"))
WHERE = (
    WEIGHTS,
    Choice("$.Values.redis", ("pod", "sentinel", "memorystore", "external")),
    Choice("$tracing", ("false", "true")),
)
"""Choices for a whole cluster."""
OF_POOLS = (Choice("$machine.form", FORMS), Choice("$capacity", CAPACITY))
"""Choices for a pool."""
OF_ALL_POOLS = tuple(choice.values[0] for choice in WHERE[1:])
"""Choices for a cluster with which all pools are rendered."""
LOCAL = "config.kubernetes.io/local-config"
SUM = "checksum/config"
TOKEN = re.compile(r"zz-(\w+?)(?:-\d+)?-zz")
ENV = '(include "atelier.env" $)'
OF_MODEL = '(dict "model" . "Files" $.Files)'
EXPRESSIONS: Mapping[str, str] = {
    "namespace": "{{ $.Release.Namespace }}",
    "pools": "{{ $pools }}",
    "uid": "{{ $uid }}",
    "nonroot": "{{ not $.Values.tpu_root }}",
    "dropped": "{{ $dropped }}",
    "place": "{{ $place }}",
    "pool": "{{ $pool }}",
    "model": "{{ .name }}",
    "share": "{{ $share }}",
    "min": "{{ .min | default 0 }}",
    "max": "{{ .max | default 4 }}",
    "more": "{{ ternary 1 0 (.surge | default false) }}",
    "less": "{{ ternary 0 1 (.surge | default false) }}",
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
    "redisurl": "{{ $.Values.redis_url }}",
    "redisnetwork": "{{ $.Values.redis_network }}",
    **{
        name.replace("_", ""): f"{{{{ $site.{name} }}}}"
        for name in ("project", "zone", "registry", "tag", "bucket", "weights_bucket", "store")
    },
    "region": "{{ $site.region }}",
    "workertag": "{{ $site.worker_tag }}",
    "weightsdisk": "{{ $site.weights_disk }}",
    "loadbalancer": "{{ $site.load_balancer }}",
    "serviceaccount": "{{ $site.service_account }}",
    "prometheus": "{{ $site.prometheus }}",
}
"""Template expression of each token."""
HEAD = """\
{{- /* Written by `make chart` from deploy/k8s. */ -}}
{{- $site := include "atelier.site" $ | fromYaml -}}
{{- $tracing := $.Values.tracing | toString -}}
{{- $pools := include "atelier.pools-namespace" $ -}}
{{- $uid := ternary 0 10001 $.Values.tpu_root -}}
{{- $dropped := ternary "NET_RAW" "ALL" $.Values.tpu_root -}}
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

NUMBERS = tuple(
    f"zz-{name}-zz" for name in ("min", "max", "more", "less", "hosts", "uid", "nonroot")
)
"""Tokens of values that are numbers or booleans in YAML, too."""
TPU_ROOT = K8S / "components" / "tpu-root"
OF_ROOT = {"atelier-tpu": "pools", "atelier": "namespace"}
"""Tokens in place of the namespaces in components/tpu-root."""


class _Quoting(Dumper):
    """YAML dumper that quotes tokens, except for numbers."""


def _quoted(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    if TOKEN.search(text) and text not in NUMBERS and "\n" not in text:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"')
    return scalar(dumper, text)


_Quoting.add_representer(str, _quoted)


def quoting(value: Any) -> str:
    """Return YAML with quoted tokens."""
    text: str = yaml.dump(value, Dumper=_Quoting, sort_keys=False, width=10**6, allow_unicode=True)
    return text


def token(name: str, number: int | None = None) -> str:
    """Return the placeholder of a value for rendering."""
    return f"zz-{name}-zz" if number is None else f"zz-{name}-{number}-zz"


@dataclass(frozen=True)
class _Machine:
    """Machine made of tokens; only its form is real."""

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
    machine_chips: int = 8


@dataclass(frozen=True)
class _Model:
    """Model in the values, made of tokens."""

    pool_name: str
    machine: Any
    capacity: Sequence[str]
    name: str = token("model")
    share: str = token("share")
    min: str = token("min")
    max: str = token("max")
    surge: bool = True

    @property
    def on_spot(self) -> bool:
        return "spot" in self.capacity

    @property
    def rollout(self) -> Object:
        return {"maxSurge": token("more"), "maxUnavailable": token("less")}

    def toml(self) -> str:
        return ""


@dataclass(frozen=True)
class _Values:
    """Values of a cluster made of tokens, for one combination of choices."""

    weights: str
    redis: str
    traced: str
    models: Sequence[Any]
    namespace: str = token("namespace")
    place: str = token("place")
    about: str = ""
    rules: str = "none"
    tpu_root: bool = False
    backup: Backup = field(default_factory=Backup)
    redis_host: str = ""
    redis_url: str = ""
    redis_network: str = ""
    site: Site = field(default_factory=Site)
    env: Mapping[str, str] = field(default_factory=dict)
    frontend: str = ""

    @property
    def tracing(self) -> bool:
        return self.traced == "true"


POOLS: Sequence[Case] = [*product(FORMS, CAPACITY)]
EXAMPLES = {"some": ("on-demand",), "spot": ("spot", "on-demand"), "none": ()}


def _models() -> Iterator[_Model]:
    """Yield a model for each combination of a pool's choices, numbered in its pool's name."""
    for number, (form, capacity) in enumerate(POOLS):
        machine = _Machine(form, "cuda" if form.startswith("gpu") else "tpu")
        yield _Model(token("pool", number), machine, EXAMPLES[capacity])


def renderings() -> Mapping[Case, Sequence[Object]]:
    """Render the manifests for each combination of the cluster's choices.

    Pools differ by weights alone, so most renderings have only one.
    """
    every_pool = [*_models()]
    with TemporaryDirectory() as folder:
        k8s = Path(shutil.copytree(K8S, Path(folder) / "k8s"))
        _tokens_for_places(k8s)
        rendered = {}
        for case in product(*(choice.values for choice in WHERE)):
            weights, in_redis, traced = case
            models = every_pool if case[1:] == OF_ALL_POOLS else every_pool[:1]
            values = cast(Values, _Values(weights, in_redis, traced, models))
            rendered[case] = [*_rendered(write(values, "chart", k8s))]
        return rendered


def _tokens_for_places(k8s: Path) -> None:
    """Replace the placeholders that a site fills in by tokens."""
    site = k8s / "site" / "site.env"
    names = [line.split("=")[0] for line in site.read_text().splitlines() if "=" in line]
    lines = [f"{name}={token(name.replace('_', ''))}\n" for name in names if name.islower()]
    site.write_text("".join(lines))
    disk = k8s / "components" / "weights-hyperdisk-ml" / "disk.env"
    disk.write_text(f"disk={token('weightsdisk')}\nzone={token('zone')}\n")
    places = {place: token(place.replace("_", "").lower()) for place in REDIS_PLACES}
    places["=PROJECT"] = f"={token('project')}"
    for file in (k8s / "components").rglob("*.env"):
        text = file.read_text()
        for place, replacement in places.items():
            text = text.replace(place, replacement)
        file.write_text(text)


def _rendered(folder: Path) -> Iterator[Object]:
    """Yield kustomize's rendering of a folder, without local configuration."""
    text = subprocess.run([*renderer(), str(folder)], check=True, capture_output=True, text=True)
    objects = [*yaml.load_all(text.stdout, yaml.CSafeLoader)]
    for name in _hashed(objects):
        objects = json.loads(json.dumps(objects).replace(f'"{name}"', f'"{name[:-11]}"'))
    for item in objects:
        if LOCAL not in item["metadata"].get("annotations", {}):
            yield _of_pools(item)


def _of_pools(item: Object) -> Object:
    """Put tokens where components/tpu-root changes a pool's object."""
    if item["kind"] == "PersistentVolume":
        item["spec"]["claimRef"]["namespace"] = token("pools")
    if item["metadata"].get("labels", {}).get("app.kubernetes.io/component") != "pool":
        return item
    item["metadata"]["namespace"] = token("pools")
    for template in _templates(item):
        pod = template["spec"]
        ids = dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), token("uid"))
        pod["securityContext"] |= {"runAsNonRoot": token("nonroot"), **ids}
        pod["containers"][0]["securityContext"]["capabilities"] = {"drop": [token("dropped")]}
        (cache,) = (source for source in pod["volumes"] if source["name"] == "compile-cache")
        attributes = cache["csi"]["volumeAttributes"]
        options = attributes["mountOptions"].split(",")[2:]
        mine = (f"uid={token('uid')}", f"gid={token('uid')}")
        attributes["mountOptions"] = ",".join((*mine, *options))
    return item


def _templates(item: Object) -> list[Object]:
    """Return the pod templates of a workload; empty for other objects."""
    if item["kind"] == "LeaderWorkerSet":
        return [*_of_slice(item["spec"])]
    return [item["spec"]["template"]] if item["kind"] == "Deployment" else []


def _of_root(
    cluster: Mapping[tuple[str, str], Mapping[Case, Object]], cases: Iterable[Case]
) -> str:
    """Return the template of what components/tpu-root adds: its own objects, and copies."""
    added = [*yaml.safe_load_all((TPU_ROOT / "redis.yaml").read_text())]
    documents = [quoting(_renamed(item)) for item in added]
    for copy in yaml.safe_load_all((TPU_ROOT / "copies.yaml").read_text()):
        name = copy["metadata"]["name"]
        variants = {case: item["spec"] for case, item in cluster["NetworkPolicy", name].items()}
        body = Merger(WHERE, quoting).document(
            {case: {**_renamed(copy), "spec": spec} for case, spec in variants.items()},
            cases,
            head="",
        )
        documents.append(body)
    body = "".join(f"---\n{document}" for document in documents)
    return f"{HEAD}{{{{- if $.Values.tpu_root }}}}\n{filled_in(body)}{{{{- end }}}}\n"


def _renamed(item: Object) -> Object:
    """Put tokens in place of the namespaces of components/tpu-root."""
    text = json.dumps(item)
    for name, name_token in OF_ROOT.items():
        text = text.replace(f'"{name}"', f'"{token(name_token)}"')
    renamed: Object = json.loads(
        text.replace("redis.atelier.svc", f"redis.{token('namespace')}.svc")
    )
    return renamed


def _hashed(objects: Iterable[Object]) -> Iterator[str]:
    """Yield ConfigMap names that end with kustomize's hash."""
    for item in objects:
        if item["kind"] == "ConfigMap" and re.search(r"-[a-z0-9]{10}$", item["metadata"]["name"]):
            yield item["metadata"]["name"]


def _digest(objects: Iterable[Object], name: str) -> str:
    """Return a digest of a ConfigMap that is equal in all renderings."""
    (data,) = (
        item["data"]
        for item in objects
        if item["kind"] == "ConfigMap" and item["metadata"]["name"] == name
    )
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def _summed(workload: Object, digest: str) -> Object:
    """Annotate a workload's pods with a digest of their settings, so that changes restart them."""
    spec = workload["spec"]
    for template in [spec["template"]] if "template" in spec else _of_slice(spec):
        annotations = template["metadata"].get("annotations", {})
        metadata = {**template["metadata"], "annotations": {SUM: digest, **annotations}}
        template["metadata"] = dict(sorted(metadata.items()))
    return workload


def _of_slice(spec: Object) -> Iterator[Object]:
    """Yield the pod templates of a LeaderWorkerSet."""
    for role in ("leader", "worker"):
        yield spec["leaderWorkerTemplate"][f"{role}Template"]


def generated() -> Mapping[str, str]:
    """Return the generated files of the chart, by path."""
    cluster: dict[tuple[str, str], dict[Case, Object]] = {}
    pools: dict[tuple[str, str], dict[Case, Object]] = {}
    for case, objects in renderings().items():
        for item in objects:
            name = item["metadata"]["name"]
            match = re.search(r"zz-pool-(\d+)-zz", name)
            if match is None:
                if item["kind"] == "Deployment":
                    item = _summed(item, token("frontendsum"))
                if item["kind"] == "StatefulSet":
                    item = _summed(item, _digest(objects, "atelier-redis"))
                cluster.setdefault((item["kind"], name), {})[case] = item
                continue
            if item["kind"] in ("Deployment", "LeaderWorkerSet"):
                item = _summed(item, token("poolsum"))
            text = json.dumps(item).replace(match[0], token("pool"))
            key = (item["kind"], name.replace(match[0], token("pool")))
            variants = pools.setdefault(key, {})
            pool = json.loads(text)
            if variants.setdefault((case[0], *POOLS[int(match[1])]), pool) != pool:
                raise ValueError(f"{key}: pools differ by more than weights")
    where = [*product(*(choice.values for choice in WHERE))]
    everywhere = [(weights, *pool) for weights in WEIGHTS.values for pool in POOLS]
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
        "templates/tpu-root.yaml": _of_root(cluster, where),
        "templates/pools.yaml": HEAD
        + EACH_POOL
        + "".join(
            filled_in(Merger((WEIGHTS, *OF_POOLS), quoting).document(variants, everywhere))
            for key, variants in pools.items()
            if key not in by_hand and key[0] != "ComputeClass"
        )
        + "{{- end }}\n",
        "templates/_env.tpl": _env(cluster[("ConfigMap", "atelier-env")], where),
    }


def _env(variants: Mapping[Case, Object], cases: Iterable[Case]) -> str:
    """Return the named template of the environment of all pods."""
    data = {case: item["data"] for case, item in variants.items()}
    body = filled_in(Merger(WHERE, quoting).document(data, cases, head=""))
    return f'{{{{- define "atelier.env-base" -}}}}\n{HEAD}{body}{{{{- end -}}}}\n'


def filled_in(text: str) -> str:
    """Replace tokens by expressions; escape braces around a token."""
    text = re.sub(r"\{(zz-(\w+)-zz)\}", r'{{ "{" }}\1{{ "}" }}', text)
    return TOKEN.sub(lambda match: EXPRESSIONS[match[1]], text)


def _machines() -> Object:
    """Return the table of machines for the template."""
    return {
        chip: {topology: _row(machine) for topology, machine in by_topology.items()}
        for chip, by_topology in MACHINES.items()
    }


def _row(machine: Machine) -> Object:
    """Return a machine's row of the chart's table."""
    return {**asdict(machine), "cpu_limit": machine.cpu_limit, "form": machine.form}


def _chart() -> str:
    """Return the text of the Helm chart's Chart.yaml."""
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
    """Return the values' JSON schema for Helm, from `tools.cluster.values`."""
    document = Values.model_json_schema()
    model = document["$defs"]["Model"]["properties"]
    model["chip"]["enum"] = [*MACHINES]
    model["topology"]["enum"] = sorted(
        {topology for chip in MACHINES.values() for topology in chip}
    )
    document["properties"]["global"] = {"type": "object"}
    return (
        json.dumps({"$schema": "http://json-schema.org/draft-07/schema#", **document}, indent=2)
        + "\n"
    )


def main() -> None:
    """Write the generated files of the Helm chart."""
    for path, content in generated().items():
        file = CHART / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)


if __name__ == "__main__":
    main()
