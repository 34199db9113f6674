"""Queries that several panels ask, and the choices above all dashboards."""

from __future__ import annotations

from tools.dashboards.panels import Link, Query, Variable

CHOSEN = 'model=~"$model"'
BY_TENANT = f'{CHOSEN},tenant_class=~"$tenant_class"'
HERE = f'{CHOSEN},instance=~"$pool"'
"""Selector of the pools that were chosen."""

MODEL = Variable("model", "Model", "label_values(atelier_queue_jobs, model)")
TENANTS = Variable(
    "tenant_class", "Tenant class", "label_values(atelier_jobs_accepted_total, tenant_class)"
)
POOL = Variable("pool", "Pool", 'label_values(atelier_pool_ready{model=~"$model"}, instance)')
API = Variable("api", "Address of the API", value="http://localhost:8000")
JOB = Variable("job", "Job", value="ID")
TRACES = Variable("traces", "Address of Jaeger", value="http://localhost:16686")

FAILED_JOBS = Link("The failed jobs", "${api:raw}/v1/jobs?state=failed")
RUNNING_JOBS = Link("The jobs that run", "${api:raw}/v1/jobs?state=running")
WAITING_JOBS = Link("The jobs that wait", "${api:raw}/v1/jobs?state=queued")
EXPIRED_JOBS = Link("The jobs that were too late", "${api:raw}/v1/jobs?state=expired")
READINESS = Link("What the front end says of itself", "${api:raw}/readyz")

SEARCH = "${traces:raw}/search?limit=100&start=${__from}000&end=${__to}000"
"""Jaeger's, in the time that is shown; it counts microseconds, Grafana milliseconds."""
ALL_TRACES = Link("The traces of this time", f"{SEARCH}&service=atelier-frontend")
JOBS_TRACE = (
    "${traces:raw}/search?service=atelier-frontend"
    "&tags=%7B%22atelier.job.id%22%3A%22${job:percentencode}%22%7D"
)
"""`{"atelier.job.id": …}`, whatever time is shown: as far as Jaeger looks back."""


def traces(operation: str, service: str = "atelier-pool") -> Link:
    """Link to traces in which that span took at least as long as the clicked point."""
    wanted = f"service={service}&operation={operation}&minDuration=${{__value.numeric}}s"
    return Link("Traces that took so long", f"{SEARCH}&{wanted}")


def rate(metric: str, where: str = CHOSEN, by: str = "model") -> str:
    """A second, of a counter, summed over all that tell it."""
    return f"sum by ({by}) (rate({metric}{{{where}}}[$__rate_interval]))"


def share(part: str, whole: str, where: str = CHOSEN, by: str = "model") -> str:
    """Query the share of one counter in the sum of both."""
    mine, other = rate(part, where, by), rate(whole, where, by)
    return f"{mine} / ({mine} + {other} > 0)"


def quantile(percent: int, histogram: str, where: str = CHOSEN, by: str = "model") -> str:
    """Query a percentile of a histogram, over all that export it; none where it is empty."""
    buckets = f"sum by ({by}, le) (rate({histogram}_bucket{{{where}}}[$__rate_interval]))"
    return f"histogram_quantile({percent / 100:g}, {buckets}) >= 0"


def quantiles(
    histogram: str,
    where: str = CHOSEN,
    by: str = "model",
    legend: str = "{{model}}",
    percents: tuple[int, ...] = (50, 95),
) -> tuple[Query, ...]:
    """Query percentiles, each called by its percent where there are several."""
    names = [f"{legend} p{percent}" if len(percents) > 1 else legend for percent in percents]
    exprs = [quantile(percent, histogram, where, by) for percent in percents]
    return tuple(Query(expr, name) for expr, name in zip(exprs, names, strict=True))


def mean(histogram: str, where: str, by: str = "") -> str:
    """Query the mean of all that was observed in the time that is shown."""
    total, number = (
        f"sum by ({by}) (increase({histogram}_{part}{{{where}}}[$__range]))"
        for part in ("sum", "count")
    )
    return f"{total} / ({number} > 0)"


def ranged(histogram: str, where: str, by: str = "le", percent: int = 95) -> str:
    """Query a percentile of all that was observed in the time that is shown."""
    buckets = f"sum by ({by}) (increase({histogram}_bucket{{{where}}}[$__range]))"
    return f"histogram_quantile({percent / 100:g}, {buckets}) >= 0"
