"""What the checks ask of objects."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.deploy.k8s.rendering import Object

COMPONENT = "app.kubernetes.io/component"
INSTANCE = "app.kubernetes.io/instance"
WORKLOADS = ("Deployment", "StatefulSet", "LeaderWorkerSet")


@dataclass(frozen=True)
class Pods:
    """The pods that one template of a workload makes."""

    owner: Object
    template: Object
    role: str = ""
    """Of a LeaderWorkerSet: leader or worker."""

    @property
    def labels(self) -> Mapping[str, str]:
        return self.template["metadata"]["labels"]

    @property
    def spec(self) -> Object:
        return self.template["spec"]

    @property
    def container(self) -> Object:
        (only,) = self.spec["containers"]
        return only

    @property
    def containers(self) -> list[Object]:
        return [*self.spec.get("initContainers", []), *self.spec["containers"]]

    @property
    def namespace(self) -> str:
        return namespace_of(self.owner)

    @property
    def component(self) -> str:
        return self.labels[COMPONENT]

    @property
    def ports(self) -> dict[str, int]:
        return {port["name"]: port["containerPort"] for port in self.container["ports"]}

    def __str__(self) -> str:
        return f"{self.owner['kind']} {name_of(self.owner)} {self.role}".strip()


def name_of(one: Object) -> str:
    return str(one["metadata"]["name"])


def namespace_of(one: Object) -> str:
    return str(one["metadata"]["namespace"])


def of_kind(objects: Iterable[Object], *kinds: str) -> list[Object]:
    return [one for one in objects if one["kind"] in kinds]


def named(objects: Iterable[Object], kind: str, name: str, at: str | None = None) -> Object:
    """The one object of that name, with or without a hash behind it, in a namespace or anywhere."""
    of_kinds = of_kind(objects, kind)
    there = [one for one in of_kinds if at is None or namespace_of(one) == at]
    found = [one for one in there if name_of(one) in (name, _unhashed(name, one))]
    assert len(found) == 1, f"{len(found)} objects are {kind} {name}"
    return found[0]


def _unhashed(name: str, one: Object) -> str:
    tail = name_of(one).removeprefix(f"{name}-")
    return name_of(one) if len(tail) == 10 and tail.isalnum() else name


def exists(objects: Iterable[Object], kind: str, name: str) -> bool:
    """By its full name."""
    return any(name_of(one) == name for one in of_kind(objects, kind))


def pods_of(objects: Iterable[Object], component: str | None = None) -> list[Pods]:
    """Of all workloads, or of one component's."""
    every = (pods for one in of_kind(objects, *WORKLOADS) for pods in templates(one))
    return [pods for pods in every if component in (None, pods.component)]


def templates(workload: Object) -> Iterator[Pods]:
    spec = workload["spec"]
    if workload["kind"] != "LeaderWorkerSet":
        yield Pods(workload, spec["template"])
        return
    for role in ("leader", "worker"):
        yield Pods(workload, spec["leaderWorkerTemplate"][f"{role}Template"], role)


def matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """As Kubernetes has it: an empty selector matches all."""
    wanted = selector.get("matchLabels", {}).items()
    return all(labels.get(key) == value for key, value in wanted) and all(
        _expressed(expression, labels) for expression in selector.get("matchExpressions", [])
    )


def _expressed(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value, operator = labels.get(expression["key"]), expression["operator"]
    if operator in ("In", "NotIn"):
        return (value in expression["values"]) == (operator == "In")
    return (value is not None) == (operator == "Exists")


def environment(objects: Iterable[Object], pods: Pods) -> dict[str, str]:
    """Of a pod's only container."""
    found: dict[str, str] = {}
    for source in pods.container.get("envFrom", []):
        name = source["configMapRef"]["name"]
        found |= named(objects, "ConfigMap", name, pods.namespace)["data"]
    return found | {one["name"]: one["value"] for one in pods.container.get("env", [])}


def gaps(objects: Iterable[Object]) -> list[str]:
    """Places that somebody has to fill in; a StatefulSet's script has words in capitals, too."""
    text = repr([one for one in objects if one["kind"] != "StatefulSet"])
    places = r"\bPROJECT\b|REGION|REDIS_HOST|SITE|MODEL\b|DISK|\bNAME\b|\bNAMESPACE\b"
    return re.findall(places, text)
