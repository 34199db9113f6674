"""Gauges of the queue (jobs by model and state, pools, objectives, pauses) and of its server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from service.jobs.queue import Depth, ModelStatus
from service.jobs.redis.connection import Memory

STATES = ("queued", "running")


class QueueGauges:
    """Gauges labelled by registered models. Unregistered models are no longer exported.

    Args:
        registry: registry that exports them.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._jobs = Gauge(
            "atelier_queue_jobs",
            "Unfinished jobs, by model and state.",
            ("model", "state"),
            registry=registry,
        )

        def by_model(name: str, meaning: str) -> Gauge:
            return Gauge(name, meaning, ("model",), registry=registry)

        self._oldest = by_model(
            "atelier_queue_oldest_seconds",
            "Age of the oldest queued job in seconds; 0 if none is queued.",
        )
        self._backlog = by_model(
            "atelier_queue_backlog_device_seconds",
            "Predicted device-seconds of queued jobs and of the rest of running jobs.",
        )
        self._pools = by_model("atelier_model_pools", "Workers serving the model.")
        self._ready = by_model(
            "atelier_model_ready",
            "1 if a worker of the model has finished its warm-up, else 0.",
        )
        self._objective = by_model(
            "atelier_objective_seconds",
            "Time that a job of the model may wait for its first claim, as configured.",
        )
        self._cold_start = by_model(
            "atelier_cold_start_seconds",
            "Usual time from no worker of the model to a ready one, as configured.",
        )
        self._info = Gauge(
            "atelier_model_info",
            "1 for each registered model, with the fingerprint of its checkpoint.",
            ("model", "fingerprint"),
            registry=registry,
        )
        self._paused = Gauge(
            "atelier_paused",
            "1 for each model, pool or worker that an operator has paused.",
            ("kind", "name"),
            registry=registry,
        )
        self._up = Gauge(
            "atelier_queue_up",
            "1 while the front end reaches Redis, else 0.",
            registry=registry,
        )

    def update(
        self,
        models: Mapping[str, ModelStatus],
        depths: Mapping[str, Depth],
        paused: Iterable[tuple[str, str]] = (),
    ) -> None:
        """Export the queue's state and the objectives, by registered model.

        Args:
            paused: kind and name of models, pools and workers that operators paused.
        """
        self._up.set(1)
        self._export(models, depths)
        replace(self._paused, ((labels, 1) for labels in paused))

    def clear(self) -> None:
        """Export no models and jobs, because the queue is unavailable."""
        self._up.set(0)
        self._export({}, {})
        self._paused.clear()

    def _export(
        self,
        models: Mapping[str, ModelStatus],
        depths: Mapping[str, Depth],
    ) -> None:
        aims = {name: status.spec.aim for name, status in models.items()}
        replace(self._objective, (((name,), aim.objective_s) for name, aim in aims.items()))
        replace(self._cold_start, (((name,), aim.cold_start_s) for name, aim in aims.items()))
        replace(self._pools, (((name,), len(status.pools)) for name, status in models.items()))
        replace(self._ready, (((name,), status.ready) for name, status in models.items()))
        info = (((name, status.spec.fingerprint), 1) for name, status in models.items())
        replace(self._info, info)
        replace(self._oldest, (((name,), depth.oldest_s) for name, depth in depths.items()))
        replace(self._backlog, (((name,), depth.backlog_s) for name, depth in depths.items()))
        replace(
            self._jobs,
            (
                ((name, state), getattr(depth, state))
                for name, depth in depths.items()
                for state in STATES
            ),
        )


class RedisMetrics(Collector):
    """Metrics of the Redis server, from the last read: its memory and its backups.

    Args:
        registry: registry that exports them.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._memory: Memory | None = None
        self._backup_age_s: float | None = None
        registry.register(self)

    def update(self, memory: Memory, backup_age_s: float | None) -> None:
        """Export Redis's memory and the age of its backup; None: no backup was made yet."""
        self._memory, self._backup_age_s = memory, backup_age_s

    def clear(self) -> None:
        """Export no values, because the server is unavailable."""
        self._memory = self._backup_age_s = None

    def describe(self) -> Iterator[Metric]:
        """Yield the metric families of Redis without samples."""
        return iter(self._families())

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families of Redis, with the samples that are known."""
        memory, age = self._families()
        if self._memory:
            memory.add_metric(("used",), self._memory.used)
            if self._memory.limit is not None:
                memory.add_metric(("limit",), self._memory.limit)
        if self._backup_age_s is not None:
            age.add_metric((), self._backup_age_s)
        yield memory
        yield age

    def _families(self) -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
        return (
            GaugeMetricFamily(
                "atelier_redis_memory_bytes",
                "Memory that Redis uses, and the limit above which it refuses writes (`maxmemory`;"
                " absent: none).",
                labels=("kind",),
            ),
            GaugeMetricFamily(
                "atelier_backup_age_seconds",
                "Time since the last `atelier backup`; absent before the first one.",
                labels=(),
            ),
        )


def replace(gauge: Gauge, values: Iterable[tuple[tuple[str, ...], float]]) -> None:
    """Replace all labelled values of a gauge, so that removed ones are no longer exported."""
    gauge.clear()
    for labels, value in values:
        gauge.labels(*labels).set(value)
