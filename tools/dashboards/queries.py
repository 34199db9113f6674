"""Queries, variables and links shared by several dashboards."""

from __future__ import annotations

from tools.dashboards.panels import Link, Query, Variable

CHOSEN = 'model=~"$model"'
BY_TENANT = f'{CHOSEN},tenant_class=~"$tenant_class"'
HERE = f'{CHOSEN},instance=~"$pool"'
"""Matchers of the selected pools."""

MODEL = Variable("model", "Model", "label_values(atelier_queue_jobs, model)")
TENANTS = Variable(
    "tenant_class", "Tenant class", "label_values(atelier_jobs_accepted_total, tenant_class)"
)
POOL = Variable("pool", "Pool", 'label_values(atelier_pool_ready{model=~"$model"}, instance)')
API = Variable("api", "Address of the API", value="http://localhost:8000")
JOB = Variable("job", "Job", value="ID")
TRACES = Variable("traces", "Address of Jaeger", value="http://localhost:16686")

FAILED_JOBS = Link("Failed jobs", "${api:raw}/v1/jobs?state=failed")
RUNNING_JOBS = Link("Running jobs", "${api:raw}/v1/jobs?state=running")
WAITING_JOBS = Link("Waiting jobs", "${api:raw}/v1/jobs?state=queued")
EXPIRED_JOBS = Link("Expired jobs", "${api:raw}/v1/jobs?state=expired")
READINESS = Link("Readiness of the front end", "${api:raw}/readyz")

SEARCH = "${traces:raw}/search?limit=100&start=${__from}000&end=${__to}000"
"""Jaeger search of the dashboard's time range; Jaeger uses microseconds, Grafana milliseconds."""
ALL_TRACES = Link("Traces of this time range", f"{SEARCH}&service=atelier-frontend")
JOBS_TRACE = (
    "${traces:raw}/search?service=atelier-frontend"
    "&tags=%7B%22atelier.job.id%22%3A%22${job:percentencode}%22%7D"
)
"""Jaeger search for `{"atelier.job.id": …}`, without a time range."""


def traces(operation: str, service: str = "atelier-pool") -> Link:
    """Link to traces with this span, at least as long as the clicked point."""
    wanted = f"service={service}&operation={operation}&minDuration=${{__value.numeric}}s"
    return Link("Traces of this duration", f"{SEARCH}&{wanted}")


def rate(metric: str, where: str = CHOSEN, by: str = "model") -> str:
    """Query the per-second rate of a counter, summed over its exporters."""
    return f"sum by ({by}) (rate({metric}{{{where}}}[$__rate_interval]))"


def share(part: str, whole: str, where: str = CHOSEN, by: str = "model") -> str:
    """Query the share of one counter in the sum of both."""
    mine, other = rate(part, where, by), rate(whole, where, by)
    return f"{mine} / ({mine} + {other} > 0)"


def quantile(percent: int, histogram: str, where: str = CHOSEN, by: str = "model") -> str:
    """Query a percentile of a histogram, over all exporters; no value if it is empty."""
    buckets = f"sum by ({by}, le) (rate({histogram}_bucket{{{where}}}[$__rate_interval]))"
    return f"histogram_quantile({percent / 100:g}, {buckets}) >= 0"


def quantiles(
    histogram: str,
    where: str = CHOSEN,
    by: str = "model",
    legend: str = "{{model}}",
    percents: tuple[int, ...] = (50, 95),
) -> tuple[Query, ...]:
    """Query percentiles; with several, the legend names each."""
    names = [f"{legend} p{percent}" if len(percents) > 1 else legend for percent in percents]
    exprs = [quantile(percent, histogram, where, by) for percent in percents]
    return tuple(Query(expr, name) for expr, name in zip(exprs, names, strict=True))


def mean(histogram: str, where: str, by: str = "") -> str:
    """Query the mean of a histogram over the dashboard's time range."""
    total, number = (
        f"sum by ({by}) (increase({histogram}_{part}{{{where}}}[$__range]))"
        for part in ("sum", "count")
    )
    return f"{total} / ({number} > 0)"


def ranged(histogram: str, where: str, by: str = "le", percent: int = 95) -> str:
    """Query a percentile of a histogram over the dashboard's time range."""
    buckets = f"sum by ({by}) (increase({histogram}_bucket{{{where}}}[$__range]))"
    return f"histogram_quantile({percent / 100:g}, {buckets}) >= 0"
