"""kustomize overlay generated from values, with one folder per pool."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tools import rules
from tools.cluster.machines import Machine
from tools.cluster.merging import plain
from tools.cluster.values import Model, Reservation, Site, Values, ValuesError

K8S = Path(__file__).parents[2] / "deploy" / "k8s"
WRITTEN = "# Written by `make overlays`"
RENDERERS = (("kubectl", "kustomize"), ("kustomize", "build"))
API = "kustomize.config.k8s.io/v1beta1"
COMPONENTS = "../../components"
TEMPLATES = "/spec/leaderWorkerTemplate"
GPU_ENV = [
    # GKE mounts the driver's libraries here.
    {"name": "LD_LIBRARY_PATH", "value": "/usr/local/nvidia/lib64"},
    # Same share as the planner (workers/slice/chips.py); JAX's default is 0.75 of the memory.
    {"name": "XLA_CLIENT_MEM_FRACTION", "value": "0.92"},
]
SPOT_GRACE_S = 15
CLASS = "compute-class.yaml"
REDIS = {
    "sentinel": "redis-sentinel",
    "memorystore": "memorystore",
    "external": "redis-external",
}
"""Components that replace the pod of Redis."""
RULES = {"managed": "Rules", "operator": "PrometheusRule"}

Object = dict[str, Any]

SHARED_MEMORY: Object = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "any"},
    "spec": {
        "template": {
            "spec": {
                "containers": [
                    {
                        "name": "pool",
                        "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}],
                    }
                ],
                "volumes": [
                    {
                        "name": "shared-memory",
                        "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"},
                    }
                ],
            }
        }
    },
}
"""Shared memory for NCCL between GPUs; a container's default /dev/shm has 64 MiB."""


def write(values: Values, name: str, k8s: Path = K8S) -> Path:
    """Write an overlay, replacing a generated one of that name, and return its folder.

    Every model must have `objective_s` (`shares.filled`).

    Raises: ValuesError: a handwritten overlay exists, or a value belongs in a kustomize file.
    """
    folder = k8s / "overlays" / name
    kustomization = folder / "kustomization.yaml"
    if folder.exists() and not (
        kustomization.exists() and kustomization.read_text().startswith(WRITTEN)
    ):
        raise ValuesError(f"{folder} is an overlay that was not generated; rename the values")
    if values.site != Site():
        raise ValuesError("site: kustomize has these names from deploy/k8s/site/site.env")
    if values.redis_host:
        raise ValuesError("redis_host: kustomize has it from deploy/k8s/components/memorystore")
    if values.tpu_root:
        raise ValuesError("tpu_root: kustomize has it as deploy/k8s/components/tpu-root")
    if values.redis_url or values.redis_network:
        raise ValuesError(
            "redis_url, redis_network: kustomize has them from deploy/k8s/components/redis-external"
        )
    shutil.rmtree(folder, ignore_errors=True)
    for path, content in files(values, name).items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return folder


def renderer() -> tuple[str, str]:
    """Return the command that renders a folder. Raises: FileNotFoundError: none."""
    for program, command in RENDERERS:
        if shutil.which(program):
            return program, command
    raise FileNotFoundError(
        "neither kubectl (1.27 or later) nor kustomize (5 or later) is installed"
    )


def files(values: Values, name: str) -> Mapping[str, str]:
    """Return the files of a kustomize overlay, by path."""
    head = f"{WRITTEN} from {name}.yaml."
    contents = {"kustomization.yaml": f"{head}\n# {values.about}\n{plain(_overlay(values))}"}
    if values.frontend:
        contents["frontend.toml"] = values.frontend
    if env := environment(values):
        contents["atelier.env"] = "".join(f"{key}={value}\n" for key, value in env.items())
    for model in values.models:
        folder = f"pools/{model.pool_name}"
        contents[f"{folder}/kustomization.yaml"] = f"{head}\n{plain(_pool(values, model))}"
        contents[f"{folder}/pool.toml"] = model.toml()
        if model.capacity:
            contents[f"{folder}/{CLASS}"] = plain(compute_class(values, model))
    if values.rules != "none":
        contents["rules.yaml"] = rules.manifest(RULES[values.rules], values.chip_prices)
    return contents


def environment(values: Values) -> Mapping[str, str]:
    """Return the environment that an overlay adds to that of the base and the components."""
    if values.redis != "sentinel":
        return values.env
    text = (K8S / "components" / REDIS["sentinel"] / "redis.env").read_text()
    (url,) = re.findall(r"^ATELIER_REDIS__URL=(.+)$", text, re.MULTILINE)
    url = url.replace(".atelier.svc:", f".{values.namespace}.svc:")
    return {"ATELIER_REDIS__URL": url, **values.env}


@cache
def _question() -> str:
    (scaled,) = yaml.safe_load_all((K8S / "components/keda/scaled-object.yaml").read_text())
    return str(scaled["spec"]["triggers"][0]["metadata"]["query"])


def query(values: Values, model: Model) -> str:
    """Return the Prometheus query with which KEDA scales a model's pool."""
    text = _question().replace('model="MODEL"', f'model="{model.name}", {values.place}')
    return text.replace("atelier_queue_up", f"atelier_queue_up{{{values.place}}}")


def compute_class(values: Values, model: Model) -> Object:
    """Return the ComputeClass of a model, with priorities in the order of its `capacity`."""
    return {
        "apiVersion": "cloud.google.com/v1",
        "kind": "ComputeClass",
        "metadata": {"name": _class_name(values, model)},
        "spec": {
            "priorities": [{**_way(source), **_nodes(model.machine)} for source in model.capacity],
            # Never another kind of machine, which no pool could use.
            "whenUnsatisfiable": "DoNotScaleUp",
            "nodePoolAutoCreation": {"enabled": True},
        },
    }


def _class_name(values: Values, model: Model) -> str:
    """Return the name of a model's ComputeClass, which is a cluster-wide object."""
    return f"{values.namespace}.{model.pool_name}"


def _way(source: str | Reservation) -> Object:
    """Return the capacity type of one ComputeClass priority."""
    if isinstance(source, Reservation):
        return {"reservations": {"affinity": "Specific", "specific": [_reserved(source)]}}
    return {"spot": {"spot": True}, "on-demand": {"spot": False}}.get(
        source, {"flexStart": {"enabled": True}}
    )


def _reserved(source: Reservation) -> Object:
    """Return a reservation's name, and its project if it has one."""
    match source.reservation.split("/"):
        case ["projects", project, "reservations", name]:
            return {"name": name, "project": project}
    return {"name": source.reservation}


def _nodes(machine: Machine) -> Object:
    """Return the machines of a ComputeClass priority."""
    if machine.kind == "tpu":
        topology = {"count": machine.chips, "topology": machine.topology}
        return {"tpu": {"type": machine.accelerator, **topology}}
    gpu = {"type": machine.accelerator, "count": machine.machine_chips, "driverVersion": "latest"}
    return {"machineType": machine.type, "gpu": gpu}


def _overlay(values: Values) -> Object:
    """Return the kustomization of a cluster's overlay."""
    components = ["../../site", f"{COMPONENTS}/gke", f"{COMPONENTS}/weights-{values.weights}"]
    components += [f"{COMPONENTS}/compile-cache"]
    components += [f"{COMPONENTS}/{REDIS[values.redis]}"] if values.redis in REDIS else []
    components += [f"{COMPONENTS}/tracing"] if values.tracing else []
    components += [f"{COMPONENTS}/backup"] if values.backup.schedule else []
    generators: list[Object] = []
    transformers = [plain(ANYWHERE)] if any(model.capacity for model in values.models) else []
    if values.weights == "hyperdisk-ml":
        transformers.append(f"{COMPONENTS}/weights-hyperdisk-ml/by-namespace")
    if environment(values):
        generators.append({"name": "atelier-env", "behavior": "merge", "envs": ["atelier.env"]})
    if values.frontend:
        files = ["atelier.toml=frontend.toml"]
        generators.append({"name": "atelier-frontend", "behavior": "replace", "files": files})
    return {
        "apiVersion": API,
        "kind": "Kustomization",
        "namespace": values.namespace,
        "resources": ["../../base", *_resources(values)],
        "components": components,
        **({"configMapGenerator": generators} if generators else {}),
        **({"patches": [_schedule(values)]} if values.backup.schedule else {}),
        **({"transformers": transformers} if transformers else {}),
    }


def _schedule(values: Values) -> Object:
    """Return the kustomize patch of the schedule of backups."""
    ops = [_replace("/spec/schedule", values.backup.schedule)]
    return {"target": {"kind": "CronJob", "name": "atelier-backup"}, "patch": plain(ops)}


def _resources(values: Values) -> Iterator[str]:
    """Yield an overlay's resources in addition to the base."""
    for model in values.models:
        yield f"pools/{model.pool_name}"
        if model.capacity:
            # cluster-wide, so without the pool's name suffix
            yield f"pools/{model.pool_name}/{CLASS}"
    if values.rules != "none":
        yield "rules.yaml"


ANYWHERE: Object = {
    "apiVersion": "builtin",
    "kind": "PatchTransformer",
    "metadata": {"name": "of-the-cluster"},
    "target": {"kind": "ComputeClass"},
    "patch": '[{"op": "remove", "path": "/metadata/namespace"}]',
}
"""Patch for kustomize, which adds a namespace to unknown kinds; a ComputeClass is cluster-wide."""


def _pool(values: Values, model: Model) -> Object:
    """Return the kustomization of a pool in an overlay."""
    machine = model.machine
    components = [f"../../{COMPONENTS}/keda"]
    components += [f"../../{COMPONENTS}/tpu"] if machine.kind == "tpu" else []
    pairs = {"app.kubernetes.io/component": "pool", "app.kubernetes.io/instance": model.pool_name}
    labels: Object = {"includeSelectors": True, "includeTemplates": True, "pairs": pairs}
    if model.machine.form == "slice":
        paths = [
            f"spec/leaderWorkerTemplate/{role}Template/metadata/labels"
            for role in ("leader", "worker")
        ]
        labels["fields"] = [
            {"kind": "LeaderWorkerSet", "path": path, "create": True} for path in paths
        ]
    return {
        "apiVersion": API,
        "kind": "Kustomization",
        "resources": [f"../../../../{'slice' if model.machine.form == 'slice' else 'pool'}"],
        "components": components,
        "nameSuffix": f"-{model.pool_name}",
        "labels": [labels],
        "configMapGenerator": [{"name": "atelier-pool", "files": ["atelier.toml=pool.toml"]}],
        "patches": [*_patches(values, model), _scaled(values, model)],
    }


def _scaled(values: Values, model: Model) -> Object:
    """Return the kustomize patch of a pool's KEDA scaling."""
    ops = [
        _replace("/spec/triggers/0/metadata/query", query(values, model)),
        _replace("/spec/triggers/0/metadata/threshold", model.share),
        _replace("/spec/minReplicaCount", model.min),
        _replace("/spec/maxReplicaCount", model.max),
        _replace("/spec/scaleTargetRef", _scale_target(model)),
    ]
    return {"target": {"kind": "ScaledObject", "name": "atelier-pool"}, "patch": plain(ops)}


def _scale_target(model: Model) -> Object:
    """Return the reference to a pool's workload, with the suffix of the pool's name.

    A `nameReference` of kustomize finds it by the name without the suffix alone, and confuses a
    Deployment with a LeaderWorkerSet.
    """
    sliced = model.machine.form == "slice"
    api, kind = (
        ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet") if sliced else ("apps/v1", "Deployment")
    )
    return {"apiVersion": api, "kind": kind, "name": f"atelier-pool-{model.pool_name}"}


def _patches(values: Values, model: Model) -> Iterator[Object]:
    """Yield the kustomize patches of a pool's workload."""
    if model.machine.form != "slice":
        ops = [*_pod_ops(values, model, "/spec/template/spec")]
        ops += _rollout(model, "/spec/strategy/rollingUpdate")
        yield {"target": {"kind": "Deployment", "name": "atelier-pool"}, "patch": plain(ops)}
        if model.machine.form == "gpus":
            yield {
                "target": {"kind": "Deployment", "name": "atelier-pool"},
                "patch": plain(SHARED_MEMORY),
            }
        return
    ops = [_replace(f"{TEMPLATES}/size", model.machine.hosts)]
    ops += _rollout(model, "/spec/rolloutStrategy/rollingUpdateConfiguration")
    for role in ("leader", "worker"):
        ops += _pod_ops(values, model, f"{TEMPLATES}/{role}Template/spec")
    yield {"target": {"kind": "LeaderWorkerSet", "name": "atelier-pool"}, "patch": plain(ops)}


def _rollout(model: Model, path: str) -> Iterator[Object]:
    """Yield the patch operation of rolling updates that start the new worker first."""
    if model.surge:
        yield _replace(path, model.rollout)


def _pod_ops(values: Values, model: Model, pod: str) -> Iterator[Object]:
    """Yield the patch operations of a model's pod."""
    machine = model.machine
    container = f"{pod}/containers/0"
    yield _add(f"{pod}/nodeSelector", _selector(values, model))
    yield _add(f"{pod}/tolerations", [*_tolerations(model)])
    yield _replace(f"{container}/image", f"atelier-worker-{machine.kind}:0.1.0")
    yield _replace(f"{container}/command/3", model.pool_name)
    yield _replace(f"{container}/resources", resources(machine))
    if machine.kind == "cuda":
        yield from (_add(f"{container}/env/-", variable) for variable in GPU_ENV)
    if model.on_spot:
        yield _replace(f"{pod}/terminationGracePeriodSeconds", SPOT_GRACE_S)


def _selector(values: Values, model: Model) -> Object:
    """Return the node selector of a pod."""
    if model.capacity:
        return {"cloud.google.com/compute-class": _class_name(values, model)}
    machine = model.machine
    if machine.kind == "cuda":
        return {"cloud.google.com/gke-accelerator": machine.accelerator}
    return {
        "cloud.google.com/gke-tpu-accelerator": machine.accelerator,
        "cloud.google.com/gke-tpu-topology": machine.topology,
    }


def _tolerations(model: Model) -> Iterator[Object]:
    """Yield the tolerations for taints of accelerator nodes."""
    yield {"key": _chips(model.machine), "operator": "Exists", "effect": "NoSchedule"}
    if model.on_spot:
        spot = {"key": "cloud.google.com/gke-spot", "operator": "Equal", "value": "true"}
        yield {**spot, "effect": "NoSchedule"}


def _chips(machine: Machine) -> str:
    """Return the Kubernetes resource name of a machine's chips."""
    return {"tpu": "google.com/tpu", "cuda": "nvidia.com/gpu"}[machine.kind]


def resources(machine: Machine) -> Object:
    """Return the resource requests and limits of a pod."""
    chips = {_chips(machine): str(machine.chips)}
    requests = {"cpu": str(machine.cpu), "memory": f"{machine.memory_gib}Gi"}
    limits = {"cpu": str(machine.cpu_limit), "memory": f"{machine.memory_limit_gib}Gi"}
    return {
        "requests": {**requests, "ephemeral-storage": "4Gi", **chips},
        "limits": {**limits, "ephemeral-storage": "16Gi", **chips},
    }


def _replace(path: str, value: Any) -> Object:
    return {"op": "replace", "path": path, "value": value}


def _add(path: str, value: Any) -> Object:
    return {"op": "add", "path": path, "value": value}
