"""Network policies allow the flows that exist, and no others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from urllib.parse import urlsplit

import pytest

from models.parallel.jax_internals import coordinator_port
from tests.deploy.k8s.objects import matches, name_of, namespace_of, of_kind, pods_of, scheduled
from tests.deploy.k8s.rendering import K8S, OVERLAYS, Object, overlay, rendered
from tests.deploy.k8s.settings import pool_of, settings_of

Flow = tuple[str, str, str, int]
"""Component, "in" or "out", peer, and TCP port (UDP ports are negative)."""

PROMETHEUS = ("gmp-system", "gke-gmp-system", "monitoring")
DNS = {("out", "kube-system", 53), ("out", "169.254.20.10/32", 53)}
CLOUD = {
    ("out", "169.254.169.254/32", 80),  # the metadata server on Dataplane V2
    ("out", "169.254.169.254/32", 8080),
    ("out", "169.254.169.252/32", 987),  # the metadata server elsewhere
    ("out", "169.254.169.252/32", 988),
    ("out", "169.254.169.254/32", 53),  # Cloud DNS
    ("out", "0.0.0.0/0", 443),  # Cloud Storage
}
UDP = {("kube-system", 53), ("169.254.20.10/32", 53), ("169.254.169.254/32", 53)}
LOAD_BALANCERS = ("130.211.0.0/22", "35.191.0.0/16")
LIBTPU = (8471, 8476)
"""Ports of libtpu: GKE's default and LeaderWorkerSet's (TPU_PROCESS_PORT)."""
TPU_METRICS = 8431
"""Port where libtpu serves metrics to GKE's collectors."""
SENTINEL = 26379
ALL_PORTS = {"protocol": "TCP", "port": 0}
"""Rule without ports."""
PRIVATE = {"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "169.254.0.0/16"}


def flows(objects: Iterable[Object]) -> set[Flow]:
    every = list(objects)
    return {
        (pods.component, *flow)
        for pods in (*pods_of(every), *scheduled(every))
        for policy in of_kind(every, "NetworkPolicy")
        if namespace_of(policy) == pods.namespace
        and matches(policy["spec"]["podSelector"], pods.labels)
        for flow in _flows(every, policy)
    }


def _flows(objects: list[Object], policy: Object) -> Iterator[tuple[str, str, int]]:
    spec, namespace = policy["spec"], namespace_of(policy)
    for direction, rules, peers in (("in", "ingress", "from"), ("out", "egress", "to")):
        for rule in spec.get(rules, []):
            assert rules.capitalize() in spec["policyTypes"]
            for port in rule.get("ports", [ALL_PORTS]):
                number = port["port"] if port["protocol"] == "TCP" else -port["port"]
                for peer in rule[peers]:
                    yield from (
                        (direction, name, number) for name in _names(objects, peer, namespace)
                    )


def _names(objects: list[Object], peer: Object, at: str) -> Iterator[str]:
    """Yield what a policy's peer selects: our components, or other namespaces and addresses."""
    if "ipBlock" in peer:
        yield peer["ipBlock"]["cidr"]
        return
    our_namespaces = {name_of(item) for item in of_kind(objects, "Namespace")}
    namespaces = [*_namespaces(peer["namespaceSelector"])] if "namespaceSelector" in peer else [at]
    yield from (name for name in namespaces if name not in our_namespaces)
    components = {
        pods.component
        for pods in (*pods_of(objects), *scheduled(objects))
        if pods.namespace in namespaces and matches(peer["podSelector"], pods.labels)
    }
    assert components or namespaces != [at] or len(our_namespaces) > 1, peer
    yield from components


def _namespaces(selector: Object) -> Iterator[str]:
    yield from selector.get("matchLabels", {}).values()
    for expression in selector.get("matchExpressions", []):
        yield from expression["values"]


def expected(name: str) -> set[Flow]:
    cloud = name.startswith("gke-")
    shared_flows = {*DNS, *(CLOUD if cloud else ()), ("out", "redis", 6379)}
    shared_flows |= {
        ("out", peer, -port) for peer, port in UDP if ("out", peer, port) in shared_flows
    }
    result: set[Flow] = {
        (component, *flow) for component in ("frontend", "pool") for flow in shared_flows
    }
    result |= {("redis", "in", component, 6379) for component in ("frontend", "pool")}
    result |= {("frontend", "in", component, 8000) for component in PROMETHEUS}
    result |= {("pool", "in", component, 9100) for component in PROMETHEUS}
    if cloud:
        result |= {("frontend", "in", component, 8000) for component in LOAD_BALANCERS}
    if "tpu" in name:
        result.add(("pool", "in", "kube-system", TPU_METRICS))
    if name.endswith("-root"):  # its policy is the same with Sentinels
        result |= {("pool", "out", "redis", SENTINEL), ("redis", "in", "pool", SENTINEL)}
    if "multihost" in name:
        ports = (int(coordinator_port), 8477, *LIBTPU)
        result |= {
            ("pool", direction, "pool", port) for direction in ("in", "out") for port in ports
        }
    return result


@pytest.mark.parametrize("name", OVERLAYS)
def test_network_policies_allow_exactly_the_expected_flows(name: str) -> None:
    assert flows(overlay(name)) == expected(name)


@pytest.mark.parametrize("name", OVERLAYS)
def test_trusted_proxies_match_the_allowed_load_balancers(name: str) -> None:
    (front,) = pods_of(overlay(name), "frontend")
    proxies = settings_of(overlay(name), front).server.trusted_proxies
    assert {str(proxy) for proxy in proxies} == set(
        LOAD_BALANCERS if name.startswith("gke-") else ()
    )


def test_root_pools_have_the_same_network_access(variants: dict[str, tuple[Object, ...]]) -> None:
    for name in ("gke-tpu-multihost", "gke-tpu-v5e-spot"):
        assert flows(variants[f"{name}-root"]) == expected(f"{name}-root")
    assert flows(variants["redis-sentinel-root"]) == flows(variants["redis-sentinel"])
    assert flows(variants["memorystore-root"]) == flows(variants["memorystore"])


def test_tpu_pods_answer_gkes_collectors(objects: tuple[Object, ...]) -> None:
    for pods in pods_of(objects, "pool"):
        is_tpu = "google.com/tpu" in pods.container["resources"]["limits"]
        assert (pods.ports.get("tpu-metrics") == TPU_METRICS) is is_tpu


def test_the_base_lets_a_gateways_namespace_in() -> None:
    assert ("frontend", "in", "true", 8000) in flows(rendered(K8S / "base"))


def test_other_traffic_is_denied(every_object: list[Object]) -> None:
    deny = [
        policy_
        for policy_ in of_kind(every_object, "NetworkPolicy")
        if not policy_["spec"]["podSelector"]
    ]
    assert {name_of(policy_) for policy_ in deny} == {"default-deny"}
    for policy_ in deny:
        assert policy_["spec"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    # egress to the internet must exclude private networks
    for policy in of_kind(every_object, "NetworkPolicy"):
        for rule in policy["spec"].get("egress", []):
            for block in (peer["ipBlock"] for peer in rule["to"] if "ipBlock" in peer):
                assert block["cidr"] != "0.0.0.0/0" or set(block["except"]) == PRIVATE


def test_memorystore_replaces_all_redis_objects(
    variants: dict[str, tuple[Object, ...]],
) -> None:
    with_pod, without = flows(overlay("gke-tpu-v6e")), flows(variants["memorystore"])
    assert without - with_pod == {
        (component, "out", "REDIS_HOST/32", 6378) for component in ("frontend", "pool")
    }
    assert {flow[0] for flow in with_pod - without} == {"frontend", "pool", "redis"}


def test_sentinels_are_reached_and_reach_each_other(
    variants: dict[str, tuple[Object, ...]],
) -> None:
    added = flows(variants["redis-sentinel"]) - flows(overlay("gke-tpu-v6e"))
    clients = {
        (*flow, SENTINEL)
        for component in ("frontend", "pool")
        for flow in ((component, "out", "redis"), ("redis", "in", component))
    }
    among = {("redis", way, "redis", port) for way in ("in", "out") for port in (6379, SENTINEL)}
    names = {
        ("redis", "out", peer, sign * 53)
        for peer in ("kube-system", "169.254.20.10/32", "169.254.169.254/32")
        for sign in (1, -1)
    }
    assert added == clients | among | names


def test_an_external_redis_is_reached_at_any_port_of_its_network(
    variants: dict[str, tuple[Object, ...]],
) -> None:
    """The Sentinels of an external Redis have other ports, so the policy allows every port of its
    network."""
    external, memorystore = flows(variants["redis-external"]), flows(variants["memorystore"])
    assert external - memorystore == {
        (component, "out", "REDIS_NETWORK", 0) for component in ("frontend", "pool")
    }
    assert len(memorystore - external) == 2
    assert {item["kind"] for item in variants["redis-external"]} == {
        item["kind"] for item in variants["memorystore"]
    }


def test_backups_reach_redis_and_the_store(variants: dict[str, tuple[Object, ...]]) -> None:
    added = flows(variants["values"]) - flows(overlay("gke-tpu-v6e"))
    of_front_ends = {
        flow for flow in flows(overlay("gke-tpu-v6e")) if flow[:2] == ("frontend", "out")
    }
    assert {flow for flow in added if "backup" in flow} == {
        ("redis", "in", "backup", 6379),
        *(("backup", *flow[1:]) for flow in of_front_ends),
    }


def test_spans_reach_the_collector_that_the_settings_name(
    variants: dict[str, tuple[Object, ...]],
) -> None:
    objects = variants["tracing"]
    for pods in (*pods_of(objects, "frontend"), *pods_of(objects, "pool")):
        endpoint = urlsplit(str(settings_of(objects, pods).tracing.endpoint))
        _, namespace, service, *_ = str(endpoint.hostname).split(".")
        assert service == "svc"
        opened = {flow for flow in flows(objects) - flows(overlay("gke-tpu-v6e"))}
        assert opened == {
            (component, "out", namespace, endpoint.port) for component in ("frontend", "pool")
        }


def test_tracing_is_off_by_default(objects: tuple[Object, ...]) -> None:
    for pods in (*pods_of(objects, "frontend"), *pods_of(objects, "pool")):
        assert settings_of(objects, pods).tracing.endpoint is None


def test_slice_hosts_connect_on_the_ports_of_the_settings_and_jax() -> None:
    objects = overlay("gke-tpu-multihost")
    for pods in pods_of(objects, "pool"):
        hosts = pool_of(settings_of(objects, pods), pods).hosts
        assert hosts.coordinator is None  # JAX determines it, with its own port
        assert pods.ports["coordinator"] == int(coordinator_port)
        assert pods.ports["follow"] == hosts.port
        assert pods.ports["libtpu"] in LIBTPU
