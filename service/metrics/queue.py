"""Gauges of the queue: jobs by model and state, pools, objectives and pauses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Gauge

from service.jobs.queue import Depth, ModelStatus

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


def replace(gauge: Gauge, values: Iterable[tuple[tuple[str, ...], float]]) -> None:
    """Replace all labelled values of a gauge, so that removed ones are no longer exported."""
    gauge.clear()
    for labels, value in values:
        gauge.labels(*labels).set(value)
