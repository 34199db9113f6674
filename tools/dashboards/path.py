"""Grafana dashboard of one job's path: time of each stage, from the front end to the store."""

from __future__ import annotations

from tools.dashboards.panels import Dashboard, Panel, Query, Row
from tools.dashboards.queries import (
    ALL_TRACES,
    API,
    BY_TENANT,
    CHOSEN,
    FAILED_JOBS,
    JOB,
    JOBS_TRACE,
    MODEL,
    RUNNING_JOBS,
    TENANTS,
    TRACES,
    WAITING_JOBS,
    mean,
    quantiles,
    ranged,
    rate,
    traces,
)

STAGES = ("encode", "denoise", "decode", "media", "store")

HOW = f"""\
**From metrics to a job.** Metrics do not identify jobs. Find the slow stage below, click on its
curve, and open the waiting, running or failed jobs, or the traces of that duration. Then enter the
job's id in the box "Job" above:

- [the job](${{api:raw}}/v1/jobs/${{job:percentencode}}): its error, attempts and `usage`;
- [its events](${{api:raw}}/v1/jobs/${{job:percentencode}}/events): each step of the job;
- [its trace]({JOBS_TRACE}), if tracing is on (docs/operations/traces.md);
- the logs of front end and pools: every line about a job has its id.

If the API requires keys, use `curl` with a key of the job's tenant.

admission → queue → claim → encode → denoise → decode → media → store
"""


def along(measure: str) -> tuple[Query, ...]:
    """Return a query per stage of a job, in order, for a bar gauge."""
    of = {"mean": mean, "p95": ranged}[measure]
    stages = tuple(
        Query(of("atelier_job_stage_seconds", f'{CHOSEN},stage="{stage}"'), stage)
        for stage in STAGES
    )
    return (
        Query(of("atelier_admission_seconds", CHOSEN), "admission"),
        Query(of("atelier_job_wait_seconds", BY_TENANT), "queue"),
        *stages,
    )


WHOLE = Row(
    "All stages",
    (
        Panel(50, "How to follow one job", HOW, kind="text", width=8, height=9),
        Panel(
            1,
            "Time by stage, mean",
            "Of all jobs in the selected time range. Stages of a job's images run concurrently, so"
            " their sum may exceed the job's duration.",
            along("mean"),
            unit="s", kind="bargauge", width=8, height=9, links=(ALL_TRACES,),
        ),
        Panel(
            2,
            "Time by stage, p95",
            "The slowest 5 % of each stage separately.",
            along("p95"),
            unit="s", kind="bargauge", width=8, height=9, links=(ALL_TRACES,),
        ),
    ),
)  # fmt: skip


def stage(id: int, name: str, title: str, description: str) -> Panel:
    """Build the panel of one of the worker's stages over time."""
    return Panel(
        id,
        title,
        description,
        quantiles("atelier_job_stage_seconds", f'{CHOSEN},stage="{name}"'),
        unit="s",
        links=(RUNNING_JOBS, traces(name)),
    )


COMING = Row(
    "Before the pool",
    (
        Panel(
            10,
            "Admission",
            "From the request's body to the queued job: validation, input images, and cost"
            " prediction.",
            quantiles("atelier_admission_seconds"),
            unit="s", links=(traces("admission", "atelier-frontend"),),
        ),
        Panel(
            11,
            "Queue",
            "From acceptance to the first claim, by tenant class.",
            quantiles("atelier_job_wait_seconds", BY_TENANT, "model, tenant_class",
                      "{{model}} {{tenant_class}}"),
            unit="s", links=(WAITING_JOBS, traces("queue")),
        ),
        Panel(
            12,
            "Claim",
            "Claims per second, and further claims of a job: after a lapsed lease, a drain,"
            " or a failure that is retried.",
            (
                Query(rate("atelier_claims_total"), "{{model}} claims"),
                Query(rate("atelier_retries_total", by="model, reason"), "{{model}} {{reason}}"),
                Query(rate("atelier_reclaimed_leases_total"), "{{model}} lapsed"),
            ),
            unit="ops", links=(RUNNING_JOBS,),
        ),
    ),
)  # fmt: skip

MAKING = Row(
    "In the pool",
    (
        stage(20, "encode", "Encode", "Tokens, noise, and the text encoders."),
        stage(21, "denoise", "Denoise", "All steps of an image, and the waits between them."),
        stage(22, "decode", "Decode", "From latents to pixels."),
        stage(23, "media", "Media", "From pixels to files, on the host."),
        stage(24, "store", "Store", "Upload to the store, including retries."),
        Panel(
            25,
            "Ended jobs",
            "Jobs per second, by outcome.",
            (Query(rate("atelier_jobs_ended_total", BY_TENANT, "outcome"), "{{outcome}}"),),
            unit="ops", stacked=True, links=(FAILED_JOBS,),
        ),
    ),
)  # fmt: skip

END = Row(
    "From admission to the end",
    (
        Panel(
            30,
            "Jobs by how long they took",
            "From acceptance to success.",
            (
                Query(
                    "sum by (le) (increase(atelier_job_duration_seconds_bucket"
                    f'{{{CHOSEN},outcome="succeeded"}}[$__rate_interval]))',
                    "{{le}}",
                ),
            ),
            kind="heatmap", width=12,
        ),
        Panel(
            31,
            "Duration by outcome, p95",
            "From acceptance to the end.",
            quantiles("atelier_job_duration_seconds", by="model, outcome",
                      legend="{{model}} {{outcome}}", percents=(95,)),
            unit="s", width=12, links=(FAILED_JOBS, ALL_TRACES),
        ),
    ),
)  # fmt: skip

PATH = Dashboard(
    "atelier-path",
    "Atelier: one job's path",
    "Time of a job by stage, from admission to the store.",
    (MODEL, TENANTS, API, JOB, TRACES),
    (WHOLE, COMING, MAKING, END),
    (ALL_TRACES,),
)
