"""Objects against each other: what names what has to be there, and to fit."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable
from typing import Any

import pytest

from service.settings import Settings
from tests.deploy.k8s.objects import (
    Pods,
    environment,
    exists,
    matches,
    name_of,
    named,
    of_kind,
    pods_of,
    templates,
)
from tests.deploy.k8s.rendering import GKE, REPOSITORY, SPOT, Object, overlay
from tests.deploy.k8s.settings import pool_of, settings_of
from workers.axes import Shape
from workers.pool import ENDING, LAST_WORDS_S, PUTTING_ASIDE

SECRETS = {"atelier-redis": {"password", "ca.pem"}}
"""Made by hand, by the commands of docs/gke.md; ca.pem with a Memorystore only."""
SPOT_PODS_S = 15
"""Of the 30 s after a Spot machine's notice, what GKE leaves to pods that are not the system's."""
MARGIN_S = 2.0
"""Between a process's own end and the kill: an interpreter that lets go of a device."""
LABELS = {"app.kubernetes.io/name": "atelier", "app.kubernetes.io/part-of": "atelier"}
TPU, GPU = "google.com/tpu", "nvidia.com/gpu"
TOPOLOGY = "cloud.google.com/gke-tpu-topology"
CHIPS_OF_A_HOST = {"gke-tpu-v6e": 8, "gke-tpu-v5e": 8, "gke-tpu-multihost": 4}
"""Of ct6e-standard-8t, ct5lp-hightpu-8t and ct6e-standard-4t."""


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
        chosen = selected(objects, {"matchLabels": service["spec"]["selector"]})
        assert chosen, name_of(service)
        for port in service["spec"]["ports"]:
            assert {pods.ports[port["targetPort"]] for pods in chosen} == {port["port"]}
    for stateful in of_kind(objects, "StatefulSet"):
        assert exists(objects, "Service", stateful["spec"]["serviceName"])


def selected(objects: Iterable[Object], selector: dict[str, Any]) -> list[Pods]:
    return [pods for pods in pods_of(objects) if matches(selector, pods.labels)]


def test_budgets_and_monitors_select_pods_and_their_ports(objects: tuple[Object, ...]) -> None:
    budgets = of_kind(objects, "PodDisruptionBudget")
    for budget in budgets:
        owners = {name_of(p.owner) for p in selected(objects, budget["spec"]["selector"])}
        assert owners == {name_of(budget)}
    guarded = {name_of(budget) for budget in budgets}
    assert guarded == {name_of(p.owner) for p in pods_of(objects) if p.component != "redis"}
    for monitor in of_kind(objects, "PodMonitoring"):
        chosen = selected(objects, monitor["spec"]["selector"])
        assert chosen, name_of(monitor)
        for endpoint in monitor["spec"]["endpoints"]:
            assert all(endpoint["port"] in pods.ports for pods in chosen)


def test_who_is_scaled_has_no_number_of_its_own(objects: tuple[Object, ...]) -> None:
    scaled = [
        one["spec"]["scaleTargetRef"]
        for one in of_kind(objects, "ScaledObject", "HorizontalPodAutoscaler")
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


def test_volumes_are_there_and_used(objects: tuple[Object, ...]) -> None:
    check_volumes(objects)


def test_volumes_of_variants_are_there_and_used(variants: dict[str, tuple[Object, ...]]) -> None:
    for objects in variants.values():
        check_volumes(objects)


def check_volumes(objects: tuple[Object, ...]) -> None:
    for pods in pods_of(objects):
        claims = pods.owner["spec"].get("volumeClaimTemplates", [])
        names = [volume["name"] for volume in pods.spec["volumes"]] + [*map(name_of, claims)]
        mounts = [mount for one in pods.containers for mount in one["volumeMounts"]]
        assert len(set(names)) == len(names), pods
        assert {mount["name"] for mount in mounts} == set(names), pods
        for volume in pods.spec["volumes"]:
            check_source(objects, volume)
    for claim in of_kind(objects, "PersistentVolumeClaim"):
        check_claim(objects, claim)


def check_source(objects: tuple[Object, ...], volume: Object) -> None:
    (kind,) = volume.keys() - {"name"}
    match kind:
        case "configMap":
            assert exists(objects, "ConfigMap", volume[kind]["name"])
        case "persistentVolumeClaim":
            claim = named(objects, "PersistentVolumeClaim", volume[kind]["claimName"])
            only_read = claim["spec"]["accessModes"] == ["ReadOnlyMany"]
            assert volume[kind].get("readOnly", False) == only_read
        case "secret":
            assert volume[kind]["secretName"] in SECRETS
        case _:
            assert kind == "emptyDir"
            assert volume[kind]["sizeLimit"]


def check_claim(objects: tuple[Object, ...], claim: Object) -> None:
    spec = claim["spec"]
    if "volumeName" not in spec:
        return
    volume = named(objects, "PersistentVolume", spec["volumeName"])["spec"]
    at = {"namespace": claim["metadata"]["namespace"], "name": name_of(claim)}
    assert volume["claimRef"] == at
    assert volume["storageClassName"] == spec["storageClassName"] == ""
    assert volume["accessModes"] == spec["accessModes"]
    assert volume["capacity"] == spec["resources"]["requests"]


def test_names_lead_somewhere_and_nothing_lies_about(objects: tuple[Object, ...]) -> None:
    check_names(objects)


def test_names_of_variants_lead_somewhere(variants: dict[str, tuple[Object, ...]]) -> None:
    for objects in variants.values():
        check_names(objects)


def check_names(objects: tuple[Object, ...]) -> None:
    maps, accounts, claims = set(), set(), set()
    for pods in pods_of(objects):
        accounts.add(pods.spec["serviceAccountName"])
        for one in pods.containers:
            maps |= {source["configMapRef"]["name"] for source in one.get("envFrom", [])}
        for volume in pods.spec["volumes"]:
            maps |= {volume["configMap"]["name"]} if "configMap" in volume else set()
            if "persistentVolumeClaim" in volume:
                claims.add(volume["persistentVolumeClaim"]["claimName"])
    assert maps == set(map(name_of, of_kind(objects, "ConfigMap")))
    assert accounts == set(map(name_of, of_kind(objects, "ServiceAccount")))
    assert claims == set(map(name_of, of_kind(objects, "PersistentVolumeClaim")))
    for one in objects:
        cluster_wide = one["kind"] in ("Namespace", "PersistentVolume")
        assert cluster_wide or one["metadata"]["namespace"] == "atelier", name_of(one)


def test_nobody_has_a_token_or_more_rights_than_needed(objects: tuple[Object, ...]) -> None:
    for account in of_kind(objects, "ServiceAccount"):
        assert account["automountServiceAccountToken"] is False
    for pods in pods_of(objects):
        assert pods.spec["automountServiceAccountToken"] is False
        pod = pods.spec["securityContext"]
        assert pod["runAsNonRoot"] is True
        assert pod["runAsUser"] == pod["runAsGroup"] == pod["fsGroup"] == 10001
        assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
        for one in pods.containers:
            assert one["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


def test_images_are_this_version_of_ours(objects: tuple[Object, ...]) -> None:
    for pods in pods_of(objects):
        for one in pods.containers:
            registry, _, image = one["image"].rpartition("/")
            if pods.component == "redis":
                assert one["image"].startswith("valkey/valkey:9.")
                continue
            name, _, tag = image.partition(":")
            assert tag == version()
            assert registry in ("", "REGION-docker.pkg.dev/PROJECT/atelier")
            kinds = ("cpu", "cuda", "tpu")
            ours = ["atelier-frontend"] if pods.component == "frontend" else [
                f"atelier-worker-{kind}" for kind in kinds
            ]  # fmt: skip
            assert name in ours


def test_front_ends_end_their_streams_before_they_are_killed(
    objects: tuple[Object, ...],
) -> None:
    (pods,) = pods_of(objects, "frontend")
    grace_s = settings_of(objects, pods).server.shutdown_grace_s
    sleep_s = pods.container["lifecycle"]["preStop"]["sleep"]["seconds"]
    total_s = pods.spec["terminationGracePeriodSeconds"]
    # the load balancer asks every 5 s, and gives up after the third time
    assert sleep_s >= 15
    assert total_s >= sleep_s + grace_s + MARGIN_S
    for policy in of_kind(objects, "GCPBackendPolicy"):
        assert policy["spec"]["default"]["connectionDraining"]["drainingTimeoutSec"] >= total_s


def test_pools_drain_before_they_are_killed(objects: tuple[Object, ...]) -> None:
    for pods in pods_of(objects, "pool"):
        drain_s = pool_of(settings_of(objects, pods), pods).drain_s
        total_s = pods.spec["terminationGracePeriodSeconds"]
        own_end_s = (ENDING + PUTTING_ASIDE) * drain_s + LAST_WORDS_S
        assert total_s >= max(drain_s, own_end_s) + MARGIN_S, pods


@pytest.mark.parametrize("name", GKE)
def test_spot_pools_are_gone_before_their_machine(name: str) -> None:
    objects, spot = overlay(name), name in SPOT
    for pods in pods_of(objects):
        on_spot = spot and pods.component == "pool"
        selector = pods.spec.get("nodeSelector", {})
        tolerated = [one["key"] for one in pods.spec.get("tolerations", [])]
        assert (selector.get("cloud.google.com/gke-spot") == "true") == on_spot
        assert ("cloud.google.com/gke-spot" in tolerated) == on_spot
        if on_spot:
            assert pods.spec["terminationGracePeriodSeconds"] <= SPOT_PODS_S
        elif pods.component != "pool":
            assert_never_on_spot(pods)


def assert_never_on_spot(pods: Pods) -> None:
    node = pods.spec["affinity"]["nodeAffinity"]
    (term,) = node["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    never = {"key": "cloud.google.com/gke-spot", "operator": "DoesNotExist"}
    assert never in term["matchExpressions"]


@pytest.mark.parametrize("name", GKE)
def test_chips_are_those_of_the_topology_and_of_the_mesh(name: str) -> None:
    objects = overlay(name)
    for pods in pods_of(objects, "pool"):
        hosts = pods.owner["spec"].get("leaderWorkerTemplate", {}).get("size", 1)
        resources = pods.container["resources"]
        (kind,) = resources["limits"].keys() & {TPU, GPU}
        chips = int(resources["limits"][kind])
        assert int(resources["requests"][kind]) == chips
        if kind == TPU:
            sides = pods.spec["nodeSelector"][TOPOLOGY].split("x")
            assert chips * hosts == math.prod(map(int, sides))
            assert chips == CHIPS_OF_A_HOST[name.removesuffix("-spot")]
        check_mesh(settings_of(objects, pods), pods, chips, hosts)
        tolerated = [one["key"] for one in pods.spec["tolerations"]]
        assert kind in tolerated


def check_mesh(settings: Settings, pods: Pods, chips: int, hosts: int) -> None:
    pool = pool_of(settings, pods)
    assert pool.mesh != "auto"
    sizes = [*pool.mesh.ici.values(), *pool.mesh.dcn.values()]
    assert -1 not in sizes
    assert math.prod(sizes) == chips * hosts
    assert Shape(pool.mesh.ici, pool.mesh.dcn, pool.mesh.ring).over(chips, hosts)
    assert pool.hosts.count == hosts


def test_a_slice_is_one_whole() -> None:
    (group,) = of_kind(overlay("gke-tpu-multihost"), "LeaderWorkerSet")
    template = group["spec"]["leaderWorkerTemplate"]
    topology = group["metadata"]["annotations"]["leaderworkerset.sigs.k8s.io/exclusive-topology"]
    assert topology == "cloud.google.com/gke-nodepool"
    assert template["restartPolicy"] == "RecreateGroupOnPodRestart"
    # a leader that were ready first would wait for workers that wait for it
    assert group["spec"]["startupPolicy"] == "LeaderCreated"
    leader, worker = (dict(pods.container) for pods in templates(group))
    for probe in ("startupProbe", "readinessProbe"):
        assert leader.pop(probe)["httpGet"]["path"] == "/readyz"
        assert worker.pop(probe)["httpGet"]["path"] == "/healthz"
    assert leader == worker


def test_first_starts_have_an_hour(objects: tuple[Object, ...]) -> None:
    for pods in pods_of(objects, "pool"):
        probe = pods.container["startupProbe"]
        assert probe["failureThreshold"] * probe["periodSeconds"] == 3600
        if pods.owner["kind"] == "Deployment":
            assert pods.owner["spec"]["progressDeadlineSeconds"] > 3600


@pytest.mark.parametrize("name", GKE)
def test_routes_lead_to_the_front_ends_and_cut_no_stream(name: str) -> None:
    objects = overlay(name)
    (gateway,), (route,) = of_kind(objects, "Gateway"), of_kind(objects, "HTTPRoute")
    (rule,), (parent,) = route["spec"]["rules"], route["spec"]["parentRefs"]
    assert parent["name"] == name_of(gateway)
    assert parent["sectionName"] in [one["name"] for one in gateway["spec"]["listeners"]]
    (backend,) = rule["backendRefs"]
    service = named(objects, "Service", backend["name"])
    assert backend["port"] in [port["port"] for port in service["spec"]["ports"]]
    # GKE refuses routes with time-outs; its policy has them
    assert gateway["spec"]["gatewayClassName"].startswith("gke-l7-")
    assert "timeouts" not in rule
    (policy,) = of_kind(objects, "GCPBackendPolicy")
    (pods,) = pods_of(objects, "frontend")
    limits = settings_of(objects, pods).limits
    assert policy["spec"]["default"]["timeoutSec"] >= 3600 > limits.max_wait_s
    for attached in of_kind(objects, "GCPBackendPolicy", "HealthCheckPolicy"):
        target = attached["spec"]["targetRef"]
        assert (target["group"], target["kind"], target["name"]) == ("", "Service", backend["name"])


@pytest.mark.parametrize("name", GKE)
def test_pools_come_from_zero_and_go_slowly(name: str) -> None:
    for scaled in of_kind(overlay(name), "ScaledObject"):
        spec = scaled["spec"]
        assert spec["minReplicaCount"] == 0 < spec["maxReplicaCount"]
        behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        assert behavior["scaleDown"]["stabilizationWindowSeconds"] == spec["cooldownPeriod"] == 900
        (trigger,) = spec["triggers"]
        assert trigger["metadata"]["activationThreshold"] == "0"
        # the first pool registers the model, or nobody could ask for it
        (pods, *_) = pods_of(overlay(name), "pool")
        probe = pods.container["startupProbe"]
        start_s = probe["failureThreshold"] * probe["periodSeconds"]
        assert spec["initialCooldownPeriod"] >= start_s
        assert settings_of(overlay(name), pods).queue.model_retention_s >= 30 * 24 * 3600
        # no answer is not an empty queue
        assert spec["fallback"]["behavior"] == "currentReplicasIfHigher"
        assert trigger["metadata"]["ignoreNullValues"] == "false"
        auth = trigger["authenticationRef"]["name"]
        assert exists(overlay(name), "TriggerAuthentication", auth)


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
        assert "ATELIER_REDIS__CA_FILE" in environment(objects, pods)
