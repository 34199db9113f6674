"""References between objects resolve: selectors, volumes, accounts, ports and images."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from service.confined.confinement import memory_bytes
from tests.deploy.k8s.conftest import V6E, VARIANTS
from tests.deploy.k8s.objects import (
    COMPONENT,
    Pods,
    environment,
    exists,
    matches,
    name_of,
    named,
    namespace_of,
    of_kind,
    pods_of,
    templates,
)
from tests.deploy.k8s.rendering import (
    GKE,
    K8S,
    REPOSITORY,
    ROOT,
    Object,
    edited,
    overlay,
    rendered,
    stands_on,
)
from tests.deploy.k8s.settings import settings_of

SECRETS = {"atelier-redis": {"password", "ca.pem"}}
"""Secrets made by hand with the commands of docs/operations/gke.md; only a Memorystore has
ca.pem."""
BUCKETS = {"weights": "-atelier-weights", "compile-cache": "-atelier"}
"""Suffixes of the bucket names in site.env, by volume."""
OF_THE_CLUSTER = ("Namespace", "PersistentVolume", "ComputeClass")
TPU = "atelier-tpu"
"""Namespace of pools that run as root."""
LABELS = {"app.kubernetes.io/name": "atelier", "app.kubernetes.io/part-of": "atelier"}


def version() -> str:
    return str(tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"])


def test_every_pod_has_the_labels_and_its_selectors_are_its_own(
    objects: tuple[Object, ...],
) -> None:
    every = pods_of(objects)
    for pods in every:
        assert LABELS.items() <= pods.labels.items(), pods
        assert pods.component in ("frontend", "pool", "redis")
        assert pods.labels["app.kubernetes.io/instance"]
    for owner in of_kind(objects, "Deployment", "StatefulSet"):
        chosen = [str(pods) for pods in every if matches(owner["spec"]["selector"], pods.labels)]
        assert chosen == [str(*templates(owner))]


def test_services_lead_to_named_ports(objects: tuple[Object, ...]) -> None:
    for service in of_kind(objects, "Service"):
        if service["spec"].get("type") == "ExternalName":
            assert resolved(objects, service)
            continue
        chosen = selected(objects, {"matchLabels": service["spec"]["selector"]})
        assert chosen, name_of(service)
        for port in service["spec"]["ports"]:
            assert {pods.ports[port["targetPort"]] for pods in chosen} == {port["port"]}
            assert "appProtocol" not in port  # load balancers spell it differently
    for stateful in of_kind(objects, "StatefulSet"):
        assert exists(objects, "Service", stateful["spec"]["serviceName"])


def resolved(objects: tuple[Object, ...], service: Object) -> Object:
    """Resolve a Service of type ExternalName to the Service that it refers to."""
    if service["spec"].get("type") != "ExternalName":
        return service
    name, namespace, *domain = service["spec"]["externalName"].split(".")
    assert domain == ["svc", "cluster", "local"]
    return named(objects, "Service", name, namespace)


def test_the_settings_lead_to_redis(objects: tuple[Object, ...]) -> None:
    for pods in (*pods_of(objects, "frontend"), *pods_of(objects, "pool")):
        url = urlsplit(str(settings_of(objects, pods).redis.url))
        service = resolved(objects, named(objects, "Service", str(url.hostname), pods.namespace))
        assert url.port in [port["port"] for port in service["spec"]["ports"]]
        (pods_,) = selected(objects, {"matchLabels": service["spec"]["selector"]})
        assert pods_.component == "redis"


MIB = 2**20
COPIES = 4
"""Copies of a request body in flight: as received, decoded, for the checking process, for the
store."""


def test_a_front_end_s_memory_is_enough_for_all_that_its_settings_allow(
    objects: tuple[Object, ...],
) -> None:
    for pods in pods_of(objects, "frontend"):
        settings, memory = settings_of(objects, pods), pods.container["resources"]
        bodies = COPIES * settings.limits.max_inflight_bytes
        children = settings.server.image_processes * memory_bytes(settings.limits.max_image_pixels)
        itself = int(memory["requests"]["memory"].removesuffix("Mi")) * MIB
        most = int(memory["limits"]["memory"].removesuffix("Gi")) * 1024 * MIB
        assert itself + bodies + children <= most


def selected(objects: Iterable[Object], selector: dict[str, Any]) -> list[Pods]:
    return [pods for pods in pods_of(objects) if matches(selector, pods.labels)]


def test_budgets_and_monitors_select_pods_and_their_ports(objects: tuple[Object, ...]) -> None:
    budgets = of_kind(objects, "PodDisruptionBudget")
    for budget in budgets:
        owners = {name_of(pods_.owner) for pods_ in selected(objects, budget["spec"]["selector"])}
        assert owners == {name_of(budget)}
    guarded = {name_of(budget) for budget in budgets}
    assert guarded == {
        name_of(pods_.owner) for pods_ in pods_of(objects) if pods_.component != "redis"
    }
    for monitor in of_kind(objects, "PodMonitoring"):
        chosen = selected(objects, monitor["spec"]["selector"])
        assert chosen, name_of(monitor)
        for endpoint in monitor["spec"]["endpoints"]:
            assert all(endpoint["port"] in pods.ports for pods in chosen)
        for label in monitor["spec"].get("targetLabels", {}).get("fromPod", []):
            assert all(label["from"] in pods.labels for pods in chosen)


def test_autoscaled_objects_have_no_replica_count(objects: tuple[Object, ...]) -> None:
    scaled = [
        item["spec"]["scaleTargetRef"]
        for item in of_kind(objects, "ScaledObject", "HorizontalPodAutoscaler")
    ]
    for target in scaled:
        owner = named(objects, target["kind"], target["name"])
        assert owner["apiVersion"] == target["apiVersion"]
        assert "replicas" not in owner["spec"], name_of(owner)
    names = [target["name"] for target in scaled]
    assert len(set(names)) == len(names)
    counted = {name_of(pods.owner) for pods in pods_of(objects) if "replicas" in pods.owner["spec"]}
    assert counted.isdisjoint(names)
    assert counted | set(names) == {name_of(pods.owner) for pods in pods_of(objects)}


def test_volumes_exist_and_are_mounted(objects: tuple[Object, ...]) -> None:
    check_volumes(objects)


def test_volumes_of_variants_exist_and_are_mounted(variants: dict[str, tuple[Object, ...]]) -> None:
    for objects in variants.values():
        check_volumes(objects)


CACHE = "gke-gcsfuse-cache"
"""Volume of the sidecar that GKE adds to a pod."""


def check_volumes(objects: tuple[Object, ...]) -> None:
    for pods in pods_of(objects):
        claims = pods.owner["spec"].get("volumeClaimTemplates", [])
        names = [volume["name"] for volume in pods.spec["volumes"]] + [*map(name_of, claims)]
        mounts = [mount for container_ in pods.containers for mount in container_["volumeMounts"]]
        assert len(set(names)) == len(names), pods
        assert {mount["name"] for mount in mounts} == {*names} - {CACHE}, pods
        for volume in pods.spec["volumes"]:
            check_source(objects, pods, volume)
    for claim in of_kind(objects, "PersistentVolumeClaim"):
        check_claim(objects, claim)


def check_source(objects: tuple[Object, ...], pods: Pods, volume: Object) -> None:
    (kind,) = volume.keys() - {"name"}
    match kind:
        case "configMap":
            assert exists(objects, "ConfigMap", volume[kind]["name"])
        case "persistentVolumeClaim":
            name = volume[kind]["claimName"]
            claim = named(objects, "PersistentVolumeClaim", name, pods.namespace)
            only_read = claim["spec"]["accessModes"] == ["ReadOnlyMany"]
            assert volume[kind].get("readOnly", False) == only_read
        case "secret":
            assert volume[kind]["secretName"] in SECRETS
        case "csi":
            check_bucket(pods, volume)
        case _:
            assert kind == "emptyDir"
            assert volume[kind]["sizeLimit"]


def check_bucket(pods: Pods, volume: Object) -> None:
    """Check a GCS FUSE volume and its driver options."""
    (mount,) = (
        entry for entry in pods.container["volumeMounts"] if entry["name"] == volume["name"]
    )
    source, annotations = volume["csi"], pods.template["metadata"]["annotations"]
    attributes = source["volumeAttributes"]
    options = attributes["mountOptions"].split(",")
    assert source["driver"] == "gcsfuse.csi.storage.gke.io"
    assert annotations["gke-gcsfuse/volumes"] == "true"
    assert attributes["bucketName"].endswith(BUCKETS[volume["name"]])
    assert source.get("readOnly", False) == mount.get("readOnly", False)
    if volume["name"] == "compile-cache":
        # programs that another user may have written are not run
        assert options[:2] == [f"uid={uid(pods)}", f"gid={uid(pods)}"]
        return
    assert "file-cache:enable-parallel-downloads:true" in options
    assert attributes["fileCacheForRangeRead"] == "true"
    (cache,) = (entry["emptyDir"] for entry in pods.spec["volumes"] if entry["name"] == CACHE)
    assert cache["medium"] == "Memory"
    assert annotations["gke-gcsfuse/memory-request"] == cache["sizeLimit"]
    assert 0 < gib(attributes["fileCacheCapacity"]) < gib(cache["sizeLimit"])


def uid(pods: Pods) -> int:
    return int(pods.spec["securityContext"]["runAsUser"])


def gib(text: str) -> int:
    return int(text.removesuffix("Gi"))


def check_claim(objects: tuple[Object, ...], claim: Object) -> None:
    spec = claim["spec"]
    if "volumeName" not in spec:
        return
    volume = named(objects, "PersistentVolume", spec["volumeName"])["spec"]
    reference = {"namespace": namespace_of(claim), "name": name_of(claim)}
    assert volume["claimRef"] == reference
    assert volume["storageClassName"] == spec["storageClassName"] == ""
    assert volume["accessModes"] == spec["accessModes"]
    assert volume["capacity"] == spec["resources"]["requests"]


def test_references_resolve_and_no_object_is_unused(objects: tuple[Object, ...]) -> None:
    check_names(objects)


def test_references_of_variants_resolve(variants: dict[str, tuple[Object, ...]]) -> None:
    for objects in variants.values():
        check_names(objects)


def check_names(objects: tuple[Object, ...]) -> None:
    used = {kind: set() for kind in ("ConfigMap", "ServiceAccount", "PersistentVolumeClaim")}
    for pods in pods_of(objects):
        namespace = pods.namespace
        used["ServiceAccount"].add((namespace, pods.spec["serviceAccountName"]))
        for item in pods.containers:
            sources = [source["configMapRef"]["name"] for source in item.get("envFrom", [])]
            used["ConfigMap"] |= {(namespace, name) for name in sources}
        for volume in pods.spec["volumes"]:
            if "configMap" in volume:
                used["ConfigMap"].add((namespace, volume["configMap"]["name"]))
            if "persistentVolumeClaim" in volume:
                claim = volume["persistentVolumeClaim"]["claimName"]
                used["PersistentVolumeClaim"].add((namespace, claim))
    for kind, names in used.items():
        assert names == {(namespace_of(item), name_of(item)) for item in of_kind(objects, kind)}
    our_namespaces = {name_of(item) for item in of_kind(objects, "Namespace")}
    assert our_namespaces == {
        namespace_of(item) for item in objects if item["kind"] not in OF_THE_CLUSTER
    }


@pytest.mark.parametrize("name", [*GKE, "weights-hyperdisk-ml"])
def test_two_installs_share_nothing_of_the_cluster(name: str, tmp_path: Path) -> None:
    """Cluster-wide names contain the namespace, so no install finds another's objects."""
    edits = VARIANTS.get(name, ())
    overlay_name = stands_on(name) if name in GKE else V6E
    names = [
        {
            (item["kind"], name_of(item))
            for item in edited(
                tmp_path / namespace,
                overlay_name,
                *edits,
                ("namespace: atelier\n", f"namespace: {namespace}\n"),
            )
            if item["kind"] in OF_THE_CLUSTER
        }
        for namespace in ("one", "other")
    ]
    assert names[0].isdisjoint(names[1])
    assert [len(cluster_names) for cluster_names in names] == [1 if name in GKE else 2] * 2


def test_uninstall_leaves_no_blocking_volume(
    every_object: list[Object],
) -> None:
    """A PersistentVolume whose claim was deleted binds to no other claim."""
    page = (REPOSITORY / "docs" / "operations" / "gke.md").read_text()
    (command,) = re.findall(r"^kubectl delete persistentvolume (\S+)", page, re.MULTILINE)
    assert {name_of(item) for item in of_kind(every_object, "PersistentVolume")} == {command}


def test_service_accounts_have_minimal_rights(objects: tuple[Object, ...]) -> None:
    check_rights(objects)


def test_service_accounts_of_variants_have_minimal_rights(
    variants: dict[str, tuple[Object, ...]],
) -> None:
    for objects in variants.values():
        check_rights(objects)


def check_rights(objects: tuple[Object, ...]) -> None:
    for account in of_kind(objects, "ServiceAccount"):
        assert account["automountServiceAccountToken"] is False
    for pods in pods_of(objects):
        level = named(objects, "Namespace", pods.namespace)["metadata"]["labels"]
        is_root = level["pod-security.kubernetes.io/enforce"] == "baseline"
        assert is_root or level["pod-security.kubernetes.io/enforce"] == "restricted"
        assert not is_root or "google.com/tpu" in pods.container["resources"]["limits"]
        assert pods.spec["automountServiceAccountToken"] is False
        pod = pods.spec["securityContext"]
        assert pod["runAsNonRoot"] is not is_root
        assert pod["runAsUser"] == pod["runAsGroup"] == pod["fsGroup"] == (0 if is_root else 10001)
        assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pods.containers:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["NET_RAW" if is_root else "ALL"]},
            }


@pytest.mark.parametrize("name", ROOT)
def test_only_pools_run_as_root(name: str) -> None:
    objects, base = overlay(name), overlay(stands_on(name))
    assert {pods.component for pods in pods_of(objects) if pods.namespace == TPU} == {"pool"}
    assert {pods.component for pods in pods_of(objects) if pods.namespace != TPU} == {
        "frontend",
        "redis",
    }
    kinds = ("ScaledObject", "TriggerAuthentication", "PodDisruptionBudget", "ServiceAccount")
    moved = {(item["kind"], name_of(item)) for item in objects if namespace_of_any(item) == TPU}
    of_pools = {(item["kind"], name_of(item)) for item in of_kind(base, *kinds) if is_pools(item)}
    assert of_pools and of_pools <= moved
    pools, front = pods_of(objects, "pool"), pods_of(objects, "frontend")
    shared = environment(objects, front[0])
    del shared["ATELIER_SERVER__TRUSTED_PROXIES"]  # set by the component gke for front ends only
    assert environment(objects, pools[0]) == shared


def namespace_of_any(item: Object) -> str | None:
    return None if item["kind"] in OF_THE_CLUSTER else namespace_of(item)


def is_pools(item: Object) -> bool:
    return bool(item["metadata"].get("labels", {}).get(COMPONENT) == "pool")


def test_images_have_the_version_of_the_project(objects: tuple[Object, ...]) -> None:
    for pods in pods_of(objects):
        for container in pods.containers:
            registry, _, image = container["image"].rpartition("/")
            if pods.component == "redis":
                # tag of one build; tags of two numbers move, which checkov.yaml denies
                assert re.fullmatch(r"valkey/valkey:9\.\d+\.\d+-alpine", container["image"])
                continue
            name, _, tag = image.partition(":")
            assert tag == version()
            assert registry in ("", "REGION-docker.pkg.dev/PROJECT/atelier")
            kinds = ("cpu", "cuda", "tpu")
            allowed = ["atelier-frontend"] if pods.component == "frontend" else [
                f"atelier-worker-{kind}" for kind in kinds
            ]  # fmt: skip
            assert name in allowed


@pytest.mark.parametrize("name", GKE)
def test_front_ends_are_replicated_and_spread(name: str) -> None:
    objects = overlay(name)
    (pods,), (scaled,) = pods_of(objects, "frontend"), of_kind(objects, "HorizontalPodAutoscaler")
    budget = named(objects, "PodDisruptionBudget", name_of(pods.owner))
    least = scaled["spec"]["minReplicas"]
    assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    assert 1 <= budget["spec"]["maxUnavailable"] < least < scaled["spec"]["maxReplicas"]
    assert pods.owner["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    spread = pods.spec["topologySpreadConstraints"]
    assert {constraint["topologyKey"] for constraint in spread} == {
        "topology.kubernetes.io/zone",
        "kubernetes.io/hostname",
    }
    for constraint in spread:
        assert selected(objects, constraint["labelSelector"]) == [pods]
        assert constraint["whenUnsatisfiable"] == "ScheduleAnyway"  # one node is better than none
        assert constraint["matchLabelKeys"] == ["pod-template-hash"]


@pytest.mark.parametrize("name", GKE)
def test_routes_lead_to_the_front_ends_and_cut_no_stream(name: str) -> None:
    objects = overlay(name)
    (gateway,), (route,) = of_kind(objects, "Gateway"), of_kind(objects, "HTTPRoute")
    (rule,), (parent,) = route["spec"]["rules"], route["spec"]["parentRefs"]
    assert parent["name"] == name_of(gateway)
    assert parent["sectionName"] in [listener["name"] for listener in gateway["spec"]["listeners"]]
    (backend,) = rule["backendRefs"]
    service = named(objects, "Service", backend["name"])
    assert backend["port"] in [port["port"] for port in service["spec"]["ports"]]
    # GKE rejects routes with time-outs; its policy sets them
    assert gateway["spec"]["gatewayClassName"].startswith("gke-l7-")
    assert "timeouts" not in rule
    (policy,) = of_kind(objects, "GCPBackendPolicy")
    (pods,) = pods_of(objects, "frontend")
    limits = settings_of(objects, pods).limits
    assert policy["spec"]["default"]["timeoutSec"] >= 3600 > limits.max_wait_s
    for attached in of_kind(objects, "GCPBackendPolicy", "HealthCheckPolicy"):
        target = attached["spec"]["targetRef"]
        assert (target["group"], target["kind"], target["name"]) == ("", "Service", backend["name"])


def test_route_timeouts_are_disabled_outside_gke() -> None:
    (route,) = of_kind(rendered(K8S / "base"), "HTTPRoute")
    (rule,) = route["spec"]["rules"]
    assert rule["timeouts"] == {"request": "0s", "backendRequest": "0s"}  # no limit


def test_a_memorystore_takes_the_place_of_the_pod(
    variants: dict[str, tuple[Object, ...]],
) -> None:
    objects = variants["memorystore"]
    assert not pods_of(objects, "redis")
    for pods in pods_of(objects):
        redis = settings_of(objects, pods).redis
        assert redis.url == "rediss://REDIS_HOST:6378"
        assert redis.username is None
        assert redis.ca_file is not None
        assert redis.ca_file.name == "ca.pem"
        assert not redis.check_name
        assert "ATELIER_REDIS__CA_FILE" in environment(objects, pods)
