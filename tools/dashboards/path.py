"""Dashboard of a job's path: where its time goes, from the front end to the store."""

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
**From the many to the one.** A metric knows no job. Find the stage that is slow below, click on its
curve, and open the jobs that wait, run or failed, or the traces that took so long. Then put the
job's id into the box "Job" above:

- [the job](${{api:raw}}/v1/jobs/${{job:percentencode}}): its error, attempts and `usage`;
- [its events](${{api:raw}}/v1/jobs/${{job:percentencode}}/events): each step of its way;
- [its trace]({JOBS_TRACE}), where tracing is on (docs/operations/traces.md);
- the logs of front end and pools: every line about a job has its id.

Where the API wants keys, `curl` sends one; a job is its tenant's alone.

door → queue → claim → encode → denoise → decode → media → store
"""


def along(measure: str) -> tuple[Query, ...]:
    """The stages in the order in which a job meets them, each as a bar."""
    of = {"mean": mean, "p95": ranged}[measure]
    stages = tuple(
        Query(of("atelier_job_stage_seconds", f'{CHOSEN},stage="{stage}"'), stage)
        for stage in STAGES
    )
    return (
        Query(of("atelier_admission_seconds", CHOSEN), "door"),
        Query(of("atelier_job_wait_seconds", BY_TENANT), "queue"),
        *stages,
    )


WHOLE = Row(
    "The whole way",
    (
        Panel(50, "How to follow one job", HOW, kind="text", width=8, height=9),
        Panel(
            1,
            "Where the time goes, mean",
            "Of all jobs in the time that is shown. Stages of one job's images run beside each"
            " other, so that they may add up to more than the job took.",
            along("mean"),
            unit="s", kind="bargauge", width=8, height=9, links=(ALL_TRACES,),
        ),
        Panel(
            2,
            "Where the time of slow ones goes, p95",
            "Of each stage by itself: the slowest twentieth.",
            along("p95"),
            unit="s", kind="bargauge", width=8, height=9, links=(ALL_TRACES,),
        ),
    ),
)  # fmt: skip


def stage(id: int, name: str, title: str, description: str) -> Panel:
    """Build the panel of one of the pool's stages over time."""
    return Panel(
        id,
        title,
        description,
        quantiles("atelier_job_stage_seconds", f'{CHOSEN},stage="{name}"'),
        unit="s",
        links=(RUNNING_JOBS, traces(name)),
    )


COMING = Row(
    "Before a pool has it",
    (
        Panel(
            10,
            "Door",
            "From the request's body to the job in the queue: checks, the request's images, the"
            " prediction of what it costs.",
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
            "Claims a second, and claims beyond the first of a job: after a lapsed lease, a drain,"
            " or a failure that another try may mend.",
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
        stage(21, "denoise", "Denoise", "All steps of an image, and what it waited between them."),
        stage(22, "decode", "Decode", "From latents to pixels."),
        stage(23, "media", "Media", "From pixels to files, on the host."),
        stage(24, "store", "Store", "Into the store, retries of a store that is away included."),
        Panel(
            25,
            "The end",
            "Jobs a second, by how they ended.",
            (Query(rate("atelier_jobs_ended_total", BY_TENANT, "outcome"), "{{outcome}}"),),
            unit="ops", stacked=True, links=(FAILED_JOBS,),
        ),
    ),
)  # fmt: skip

END = Row(
    "From the door to the end",
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
    "Where the time of a job goes, from the door to the store.",
    (MODEL, TENANTS, API, JOB, TRACES),
    (WHOLE, COMING, MAKING, END),
    (ALL_TRACES,),
)
