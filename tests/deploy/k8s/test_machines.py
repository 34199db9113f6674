"""Pods match the machines that they run on: chips, memory, grace periods and start-up times."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from models.parallel.jax_internals import xla_client
from service.settings.settings import Settings
from tests.deploy import load_balancers
from tests.deploy.k8s.objects import Pods, exists, name_of, of_kind, pods_of, templates
from tests.deploy.k8s.rendering import GKE, REPOSITORY, SPOT, Object, overlay, stands_on
from tests.deploy.k8s.settings import pool_of, settings_of
from tests.deploy.k8s.test_scaling import query
from tools.cluster import machines
from workers.pool.running_jobs import SUSPENDING
from workers.pool.worker import ENDING, SHUTDOWN_TIMEOUT_S
from workers.slice.chips import GPU_SHARE
from workers.slice.mesh_shape import MeshShape
from workers.slice.preflight import MIN_SHM_BYTES

SPOT_PODS_S = 15
"""Time that GKE leaves to non-system pods of the 30 s after a Spot machine's notice."""
LEAVING_S = 40
"""Time until Google's load balancers stop sending to a terminating pod: the wait in the example of
their advice on 502s during scaling. Their health checks do not determine it."""
MARGIN_S = 2.0
"""Time between a process's own exit and the kill, for an interpreter that releases a device."""
TPU, GPU = "google.com/tpu", "nvidia.com/gpu"
TOPOLOGY = "cloud.google.com/gke-tpu-topology"


class Machine(NamedTuple):
    """A machine type, with the values of `TYPES`."""

    type: str
    chips: int
    vcpus: int
    memory_gb: int


MACHINES = {
    "gke-tpu-v6e": Machine("ct6e-standard-8t", 8, 180, 1440),
    "gke-tpu-v5e": Machine("ct5lp-hightpu-8t", 8, 224, 384),
    "gke-tpu-multihost": Machine("ct6e-standard-4t", 4, 180, 720),
    "gke-tpu-v5p": Machine("ct5p-hightpu-4t", 4, 208, 448),
    "gke-tpu-7x": Machine("tpu7x-standard-4t", 4, 224, 960),
    "gke-gpu-h100": Machine("a3-highgpu-8g", 8, 208, 1872),
    "gke-gpu-h200": Machine("a3-ultragpu-8g", 8, 224, 2952),
}
"""Machines from which docs/operations/gke.md makes node pools."""
DEVICES = {"gke-tpu-7x": 2}
"""JAX devices per chip, if not 1."""
TO_PODS = 0.9
"""Minimum share of a machine's processors and memory that pods get; the system and daemons use the
rest."""
GIB = 2**30


def test_front_ends_close_streams_within_the_grace_period(
    objects: tuple[Object, ...],
) -> None:
    (pods,) = pods_of(objects, "frontend")
    grace_s = settings_of(objects, pods).server.shutdown_grace_s
    sleep_s = pods.container["lifecycle"]["preStop"]["sleep"]["seconds"]
    total_s = pods.spec["terminationGracePeriodSeconds"]
    assert sleep_s >= LEAVING_S
    assert total_s >= sleep_s + grace_s + MARGIN_S
    for policy in of_kind(objects, "GCPBackendPolicy"):
        assert policy["spec"]["default"]["connectionDraining"]["drainingTimeoutSec"] >= total_s


def test_no_request_meets_a_connection_that_was_just_closed(objects: tuple[Object, ...]) -> None:
    (pods,) = pods_of(objects, "frontend")
    assert settings_of(objects, pods).server.idle_s > load_balancers.IDLE_S


def test_pools_drain_within_the_grace_period(objects: tuple[Object, ...]) -> None:
    for pods in pods_of(objects, "pool"):
        drain_s = pool_of(settings_of(objects, pods), pods).drain_s
        total_s = pods.spec["terminationGracePeriodSeconds"]
        shutdown_s = (ENDING + SUSPENDING) * drain_s + SHUTDOWN_TIMEOUT_S
        assert total_s >= max(drain_s, shutdown_s) + MARGIN_S, pods


@pytest.mark.parametrize("name", GKE)
def test_spot_pools_exit_before_their_machine(name: str) -> None:
    objects, spot = overlay(name), name in SPOT
    for pods in pods_of(objects):
        on_spot = spot and pods.component == "pool"
        selector = pods.spec.get("nodeSelector", {})
        tolerated = [toleration["key"] for toleration in pods.spec.get("tolerations", [])]
        assert (selector.get("cloud.google.com/gke-spot") == "true") == on_spot
        assert ("cloud.google.com/gke-spot" in tolerated) == on_spot
        if pods.component == "pool":
            assert settings_of(objects, pods).usage.spot == on_spot
        if on_spot:
            assert pods.spec["terminationGracePeriodSeconds"] <= SPOT_PODS_S
        elif pods.component != "pool":
            assert_never_on_spot(pods)


def assert_never_on_spot(pods: Pods) -> None:
    node = pods.spec["affinity"]["nodeAffinity"]
    (term,) = node["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    never = {"key": "cloud.google.com/gke-spot", "operator": "DoesNotExist"}
    assert never in term["matchExpressions"]


def test_unready_pool_does_not_block_an_upgrade(objects: tuple[Object, ...]) -> None:
    for budget in of_kind(objects, "PodDisruptionBudget"):
        if name_of(budget).startswith("atelier-pool"):
            assert budget["spec"]["maxUnavailable"] == 1
            assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


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
            dimensions = pods.spec["nodeSelector"][TOPOLOGY].split("x")
            assert chips * hosts == math.prod(map(int, dimensions))
            assert chips == MACHINES[stands_on(name)].chips
        check_mesh(settings_of(objects, pods), pods, chips * DEVICES.get(stands_on(name), 1), hosts)
        tolerated = [toleration["key"] for toleration in pods.spec["tolerations"]]
        assert kind in tolerated


@pytest.mark.parametrize("name", MACHINES)
def test_machine_type_fits_a_pod_per_chip(name: str) -> None:
    machine = MACHINES[name]
    assert f"--machine-type={machine.type} " in (REPOSITORY / "docs/operations/gke.md").read_text()
    for pods in pods_of(overlay(name), "pool"):
        requests = pods.container["resources"]["requests"]
        (kind,) = requests.keys() & {TPU, GPU}
        pods_per_machine = machine.chips // int(requests[kind])
        assert pods_per_machine * int(requests[kind]) == machine.chips
        assert pods_per_machine * int(requests["cpu"]) <= TO_PODS * machine.vcpus
        sidecar_memory = pods.template["metadata"]["annotations"]["gke-gcsfuse/memory-request"]
        memory_gb = sum(
            int(text.removesuffix("Gi")) for text in (requests["memory"], sidecar_memory)
        )
        memory_bytes = pods_per_machine * memory_gb * GIB
        assert memory_bytes <= TO_PODS * machine.memory_gb * 1e9


TYPES: Mapping[str, tuple[int, int]] = {
    "ct4p-hightpu-4t": (240, 407),
    "ct5lp-hightpu-4t": (112, 192),
    "ct6e-standard-1t": (44, 176),
    "a2-ultragpu-1g": (12, 170),
    "a2-ultragpu-2g": (24, 340),
    "a2-ultragpu-4g": (48, 680),
    "a2-ultragpu-8g": (96, 1360),
    "a2-highgpu-2g": (24, 170),
    "a2-highgpu-4g": (48, 340),
    "a2-highgpu-8g": (96, 680),
    "g2-standard-48": (48, 192),
    "g2-standard-96": (96, 384),
    **{machine.type: (machine.vcpus, machine.memory_gb) for machine in MACHINES.values()},
}
"""Processors and memory in GB of all machine types of the values.

Source: Compute Engine's list of machine types (Cyclenerd/google-cloud-pricing-cost-calculator,
tools/machinetypes.csv), and of TPU7x docs.cloud.google.com/tpu/docs/tpu7x. Where the list differs
from GKE's page on TPUs, the smaller value: of ct6e-standard-8t, 180 of the page and not 360
processors; of ct6e-standard-1t, 176 of the list and not 448 GB.
"""


@pytest.mark.parametrize(
    ("chip", "topology"),
    [(chip, topology) for chip, sizes in machines.MACHINES.items() for topology in sizes],
)
def test_pods_of_every_chip_and_topology_fit_on_their_machine(chip: str, topology: str) -> None:
    """The requests of pods, including the sidecar's cache of weights, fit on their machine for
    every chip and topology."""
    machine = machines.MACHINES[chip][topology]
    vcpus, memory_gb = TYPES[machine.type]
    pods = machine.machine_chips // machine.chips
    assert pods * machine.chips == machine.machine_chips
    assert pods * machine.cpu <= TO_PODS * vcpus
    memory_bytes = pods * (machine.memory_gib + sidecar_gib()) * GIB
    assert memory_bytes <= TO_PODS * memory_gb * 1e9


def sidecar_gib() -> int:
    (pods, *_) = pods_of(overlay("gke-tpu-v6e"), "pool")
    text = pods.template["metadata"]["annotations"]["gke-gcsfuse/memory-request"]
    return int(text.removesuffix("Gi"))


def test_gpu_memory_fraction_matches_the_planner() -> None:
    for name in ("gke-gpu-h100", "gke-gpu-h200"):
        for pods in pods_of(overlay(name), "pool"):
            values = {variable["name"]: variable["value"] for variable in pods.container["env"]}
            assert float(values["XLA_CLIENT_MEM_FRACTION"]) == GPU_SHARE
    assert "'XLA_CLIENT_MEM_FRACTION'" in Path(xla_client).read_text("utf-8")


def test_communicating_accelerators_have_shared_memory() -> None:
    """A worker requires this before it starts JAX; a container's default is 64 MiB."""
    for name in MACHINES:
        for pods in pods_of(overlay(name), "pool"):
            (kind,) = pods.container["resources"]["limits"].keys() & {TPU, GPU}
            mounts = {entry["mountPath"]: entry["name"] for entry in pods.container["volumeMounts"]}
            if kind == GPU and pods.container["resources"]["limits"][kind] == "1":
                assert "/dev/shm" not in mounts
                continue
            (source,) = (
                entry["emptyDir"]
                for entry in pods.spec["volumes"]
                if entry["name"] == mounts["/dev/shm"]
            )
            assert source["medium"] == "Memory"
            assert int(source["sizeLimit"].removesuffix("Gi")) * GIB >= MIN_SHM_BYTES


def check_mesh(settings: Settings, pods: Pods, devices: int, hosts: int) -> None:
    pool = pool_of(settings, pods)
    assert pool.mesh != "auto"
    sizes = [*pool.mesh.ici.values(), *pool.mesh.dcn.values()]
    assert -1 not in sizes
    assert math.prod(sizes) == devices * hosts
    assert MeshShape(pool.mesh.ici, pool.mesh.dcn, pool.mesh.ring).over(devices, hosts)
    assert pool.hosts.count == hosts


def test_leader_and_workers_of_a_slice_have_equal_containers() -> None:
    (group,) = of_kind(overlay("gke-tpu-multihost"), "LeaderWorkerSet")
    template = group["spec"]["leaderWorkerTemplate"]
    topology = group["metadata"]["annotations"]["leaderworkerset.sigs.k8s.io/exclusive-topology"]
    assert topology == "cloud.google.com/gke-nodepool"
    assert template["restartPolicy"] == "RecreateGroupOnPodRestart"
    # a leader that had to be ready first would deadlock with its workers
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
def test_pools_scale_from_zero_and_down_slowly(name: str) -> None:
    for scaled in of_kind(overlay(name), "ScaledObject"):
        spec = scaled["spec"]
        assert spec["minReplicaCount"] == 0 < spec["maxReplicaCount"]
        behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        assert behavior["scaleDown"]["stabilizationWindowSeconds"] == spec["cooldownPeriod"] == 900
        (trigger,) = spec["triggers"]
        assert trigger["metadata"]["activationThreshold"] == "0"
        (pods, *_) = pods_of(overlay(name), "pool")
        assert spec["scaleTargetRef"]["name"] == name_of(pods.owner)
        model = pool_of(settings_of(overlay(name), pods), pods).model
        assert trigger["metadata"]["query"] == query(model, 'namespace="atelier"')
        probe = pods.container["startupProbe"]
        start_s = probe["failureThreshold"] * probe["periodSeconds"]
        assert spec["initialCooldownPeriod"] >= start_s
        assert settings_of(overlay(name), pods).queue.model_retention_s >= 30 * 24 * 3600
        # a missing answer does not mean an empty queue
        assert spec["fallback"]["behavior"] == "currentReplicasIfHigher"
        assert trigger["metadata"]["ignoreNullValues"] == "false"
        auth = trigger["authenticationRef"]["name"]
        assert exists(overlay(name), "TriggerAuthentication", auth)
