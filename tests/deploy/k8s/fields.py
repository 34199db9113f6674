"""Fields of custom resources that the manifests use, by kind; paths skip list indices.

Copied from the references of the CRDs and providers. It is the check where no CRDs are available;
`test_schemas` compares it with the CRDs where they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

GROUPS: Mapping[str, str] = {
    "Gateway": "gateway.networking.k8s.io/v1",
    "HTTPRoute": "gateway.networking.k8s.io/v1",
    "GCPBackendPolicy": "networking.gke.io/v1",
    "HealthCheckPolicy": "networking.gke.io/v1",
    "PodMonitoring": "monitoring.googleapis.com/v1",
    "ScaledObject": "keda.sh/v1alpha1",
    "TriggerAuthentication": "keda.sh/v1alpha1",
    "LeaderWorkerSet": "leaderworkerset.x-k8s.io/v1",
    "ComputeClass": "cloud.google.com/v1",
    "Rules": "monitoring.googleapis.com/v1",
    "PrometheusRule": "monitoring.coreos.com/v1",
}
"""apiVersion by kind."""

BEHAVIOR = "advanced.horizontalPodAutoscalerConfig.behavior"
RULES = frozenset(
    (
        "groups.name",
        "groups.interval",
        "groups.rules.alert",
        "groups.rules.record",
        "groups.rules.expr",
        "groups.rules.for",
        "groups.rules.labels",
        "groups.rules.annotations",
    )
)
FIELDS: Mapping[str, frozenset[str]] = {
    "Rules": RULES,
    "PrometheusRule": RULES,
    "Gateway": frozenset(
        (
            "gatewayClassName",
            "listeners.name",
            "listeners.protocol",
            "listeners.port",
            "listeners.tls.mode",
            "listeners.tls.certificateRefs.name",
            "listeners.allowedRoutes.namespaces.from",
        )
    ),
    "HTTPRoute": frozenset(
        (
            "parentRefs.name",
            "parentRefs.sectionName",
            "rules.matches.path.type",
            "rules.matches.path.value",
            "rules.timeouts.request",
            "rules.timeouts.backendRequest",
            "rules.backendRefs.name",
            "rules.backendRefs.port",
        )
    ),
    "GCPBackendPolicy": frozenset(
        (
            "default.timeoutSec",
            "default.connectionDraining.drainingTimeoutSec",
            "targetRef.group",
            "targetRef.kind",
            "targetRef.name",
        )
    ),
    "HealthCheckPolicy": frozenset(
        (
            "default.checkIntervalSec",
            "default.timeoutSec",
            "default.healthyThreshold",
            "default.unhealthyThreshold",
            "default.config.type",
            "default.config.httpHealthCheck.port",
            "default.config.httpHealthCheck.requestPath",
            "targetRef.group",
            "targetRef.kind",
            "targetRef.name",
        )
    ),
    "PodMonitoring": frozenset(
        (
            "selector.matchLabels",
            "targetLabels.fromPod.from",
            "targetLabels.fromPod.to",
            "endpoints.port",
            "endpoints.path",
            "endpoints.interval",
        )
    ),
    "ScaledObject": frozenset(
        (
            "scaleTargetRef.apiVersion",
            "scaleTargetRef.kind",
            "scaleTargetRef.name",
            "minReplicaCount",
            "maxReplicaCount",
            "pollingInterval",
            "cooldownPeriod",
            "initialCooldownPeriod",
            "advanced.restoreToOriginalReplicaCount",
            f"{BEHAVIOR}.scaleUp.stabilizationWindowSeconds",
            f"{BEHAVIOR}.scaleDown.stabilizationWindowSeconds",
            f"{BEHAVIOR}.scaleDown.policies.type",
            f"{BEHAVIOR}.scaleDown.policies.value",
            f"{BEHAVIOR}.scaleDown.policies.periodSeconds",
            "fallback.failureThreshold",
            "fallback.replicas",
            "fallback.behavior",
            "triggers.type",
            "triggers.metricType",
            "triggers.metadata",
            "triggers.authenticationRef.name",
        )
    ),
    "ComputeClass": frozenset(
        (
            "priorities.reservations.affinity",
            "priorities.reservations.specific.name",
            "priorities.reservations.specific.project",
            "priorities.spot",
            "priorities.flexStart.enabled",
            "priorities.machineType",
            "priorities.gpu.type",
            "priorities.gpu.count",
            "priorities.gpu.driverVersion",
            "priorities.tpu.type",
            "priorities.tpu.count",
            "priorities.tpu.topology",
            "whenUnsatisfiable",
            "nodePoolAutoCreation.enabled",
        )
    ),
    "TriggerAuthentication": frozenset(("podIdentity.provider",)),
    "LeaderWorkerSet": frozenset(
        (
            "startupPolicy",
            "rolloutStrategy.type",
            "rolloutStrategy.rollingUpdateConfiguration.maxSurge",
            "rolloutStrategy.rollingUpdateConfiguration.maxUnavailable",
            "leaderWorkerTemplate.size",
            "leaderWorkerTemplate.restartPolicy",
            "leaderWorkerTemplate.leaderTemplate",
            "leaderWorkerTemplate.workerTemplate",
        )
    ),
}
"""Paths below `spec`. A path with free keys (`matchLabels`, `labels`, `metadata` of triggers), or
of a pod's template, which is checked as a pod, covers everything below it."""

TRIGGER = frozenset(
    ("serverAddress", "query", "threshold", "activationThreshold", "ignoreNullValues")
)
"""Keys of KEDA's prometheus trigger."""


def used(kind: str, spec: Any, path: str = "") -> Iterator[str]:
    """Yield paths of the leaves in use; free keys are not descended into."""
    if path in FIELDS[kind] or spec in ({}, []):
        yield path
    elif isinstance(spec, list):
        for item in spec:
            yield from used(kind, item, path)
    elif isinstance(spec, dict):
        for key, value in spec.items():
            yield from used(kind, value, f"{path}.{key}" if path else key)
    else:
        yield path
