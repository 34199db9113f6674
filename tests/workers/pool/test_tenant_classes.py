"""Metrics of tenant classes that are added after a worker's start: they begin with 0."""

from __future__ import annotations

from models.parallel.axis_rules import Layout
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.jobs.tenants import TenantRecords
from service.settings.tenants import TenantSettings
from tests.workers.polling import until
from tests.workers.running_worker import at_work
from tests.workers.toy import SPEC, ToyPipeline
from workers.pool import metrics

CLASS = "came-later"


def exported() -> set[str]:
    """Return the values that the worker counts for that class."""
    return {
        f"{sample.name} {sample.value}"
        for family in (metrics.job_metrics.ends, metrics.job_metrics.wait)
        for metric in family.collect()
        for sample in metric.samples
        if sample.labels.get("tenant_class") == CLASS and sample.labels["model"] == SPEC.name
    }


async def test_class_added_later_is_exported(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    async with at_work(pipeline, layout, queue, store, lease_s=0.3):
        assert not exported()
        acme = TenantSettings(metrics_class=CLASS)
        await TenantRecords(queue.redis).change(lambda _: {"acme": acme})
        await until(lambda: bool(exported()))
    assert {"atelier_jobs_ended_total 0.0", "atelier_job_wait_seconds_count 0.0"} <= exported()
