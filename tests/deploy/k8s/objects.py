"""Queries over Kubernetes objects for the manifest checks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.deploy.k8s.rendering import Object

COMPONENT = "app.kubernetes.io/component"
WORKLOADS = ("Deployment", "StatefulSet", "LeaderWorkerSet")


@dataclass(frozen=True)
class Pods:
    """Pods of one template of a workload."""

    owner: Object
    template: Object
    role: str = ""
    """leader or worker of a LeaderWorkerSet, else empty."""

    @property
    def labels(self) -> Mapping[str, str]:
        return self.template["metadata"]["labels"]

    @property
    def spec(self) -> Object:
        return self.template["spec"]

    @property
    def container(self) -> Object:
        """The first container; only pods of Redis with Sentinels have another."""
        first, *others = self.spec["containers"]
        assert not others or self.component == "redis"
        return first

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
        return {
            port["name"]: port["containerPort"]
            for container in self.spec["containers"]
            for port in container["ports"]
        }

    def __str__(self) -> str:
        return f"{self.owner['kind']} {name_of(self.owner)} {self.role}".strip()


def name_of(item: Object) -> str:
    return str(item["metadata"]["name"])


def namespace_of(item: Object) -> str:
    return str(item["metadata"]["namespace"])


def of_kind(objects: Iterable[Object], *kinds: str) -> list[Object]:
    return [item for item in objects if item["kind"] in kinds]


def named(objects: Iterable[Object], kind: str, name: str, at: str | None = None) -> Object:
    """The only object of that name, with or without a hash suffix, in namespace `at` or any."""
    all_of_kind = of_kind(objects, kind)
    candidates = [item for item in all_of_kind if at is None or namespace_of(item) == at]
    matches_ = [item for item in candidates if name_of(item) in (name, _unhashed(name, item))]
    assert len(matches_) == 1, f"{len(matches_)} objects are {kind} {name}"
    return matches_[0]


def _unhashed(name: str, item: Object) -> str:
    suffix = name_of(item).removeprefix(f"{name}-")
    return name_of(item) if len(suffix) == 10 and suffix.isalnum() else name


def exists(objects: Iterable[Object], kind: str, name: str) -> bool:
    """Whether an object has exactly that name."""
    return any(name_of(item) == name for item in of_kind(objects, kind))


def pods_of(objects: Iterable[Object], component: str | None = None) -> list[Pods]:
    """Pods of all workloads, or of one component."""
    every = (pods for workload in of_kind(objects, *WORKLOADS) for pods in templates(workload))
    return [pods for pods in every if component in (None, pods.component)]


def scheduled(objects: Iterable[Object]) -> list[Pods]:
    """Pods that run on a schedule."""
    return [pods for job in of_kind(objects, "CronJob") for pods in templates(job)]


def templates(workload: Object) -> Iterator[Pods]:
    spec = workload["spec"]
    if workload["kind"] == "CronJob":
        yield Pods(workload, spec["jobTemplate"]["spec"]["template"])
        return
    if workload["kind"] != "LeaderWorkerSet":
        yield Pods(workload, spec["template"])
        return
    for role in ("leader", "worker"):
        yield Pods(workload, spec["leaderWorkerTemplate"][f"{role}Template"], role)


def matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Kubernetes label matching; an empty selector matches everything."""
    labels_ = selector.get("matchLabels", {}).items()
    return all(labels.get(key) == value for key, value in labels_) and all(
        _expressed(expression, labels) for expression in selector.get("matchExpressions", [])
    )


def _expressed(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value, operator = labels.get(expression["key"]), expression["operator"]
    if operator in ("In", "NotIn"):
        return (value in expression["values"]) == (operator == "In")
    return (value is not None) == (operator == "Exists")


def environment(objects: Iterable[Object], pods: Pods) -> dict[str, str]:
    """Environment of a pod's only container."""
    result: dict[str, str] = {}
    for source in pods.container.get("envFrom", []):
        name = source["configMapRef"]["name"]
        result |= named(objects, "ConfigMap", name, pods.namespace)["data"]
    return result | {
        variable["name"]: variable["value"] for variable in pods.container.get("env", [])
    }


def gaps(objects: Iterable[Object]) -> list[str]:
    """Placeholders that a user has to fill in. StatefulSets are skipped: their scripts have words
    in capitals."""
    text = repr([item for item in objects if item["kind"] != "StatefulSet"])
    words = r"\bPROJECT\b|(?<!__)REGION|SITE|MODEL\b|DISK|\bNAME\b|\bNAMESPACE\b"
    placeholders = rf"{words}|REDIS_HOST|REDIS_URL|REDIS_NETWORK"
    return re.findall(placeholders, text)
