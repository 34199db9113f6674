"""Grafana dashboard of the service: objectives, latency, refusals and failures."""

from __future__ import annotations

from tools.dashboards.panels import Dashboard, Panel, Query, Row
from tools.dashboards.queries import (
    API,
    BY_TENANT,
    CHOSEN,
    EXPIRED_JOBS,
    FAILED_JOBS,
    MODEL,
    READINESS,
    TENANTS,
    WAITING_JOBS,
    quantile,
    quantiles,
    rate,
)

V1 = 'route=~"/v1/.+"'


def shares(recorded: str) -> tuple[Query, ...]:
    """Query a share of a model's jobs over the windows of its alerts."""
    return tuple(
        Query(f"{recorded}:ratio_rate{window}{{{CHOSEN}}}", f"{{{{model}}}} {window}")
        for window in ("5m", "1h", "6h")
    )


NOW = Row(
    "Objectives",
    (
        Panel(
            1,
            "Requests answered, last hour",
            "Share of requests without a 5xx response: of those that submit jobs or of all others,"
            " whichever is lower. The objective is 99.9 % over 30 days; requests refused with 4xx"
            " count as answered.",
            (Query("1 - max(atelier:http_errors:ratio_rate1h)"),),
            unit="percentunit", kind="stat", width=4, height=5, top=1,
            first="red", thresholds=((0.99, "orange"), (0.999, "green")),
        ),
        Panel(
            2,
            "Alerts",
            "Firing alerts. The runbook (docs/operations/runbook.md) has an entry for each.",
            (Query('count(ALERTS{alertname=~"Atelier.+",alertstate="firing"}) or vector(0)'),),
            kind="stat", width=4, height=5, thresholds=((1, "red"),),
        ),
        Panel(
            3,
            "Deadlines met, last hour",
            "Of ended jobs with a deadline (`deadline_s`).",
            (
                Query(
                    '1 - (sum(increase(atelier_job_deadlines_total{outcome="missed",'
                    f"{BY_TENANT}}}[1h])) or vector(0))"
                    f" / (sum(increase(atelier_job_deadlines_total{{{BY_TENANT}}}[1h])) > 0)"
                ),
            ),
            unit="percentunit", kind="stat", width=4, height=5, top=1,
            first="red", thresholds=((0.9, "orange"), (0.95, "green")),
        ),
        Panel(
            4,
            "Jobs done a minute",
            "Jobs that succeeded.",
            (
                Query(
                    "60 * sum(rate(atelier_jobs_ended_total{outcome=\"succeeded\","
                    f"{BY_TENANT}}}[$__rate_interval]))"
                ),
            ),
            kind="stat", width=4, height=5,
        ),
        Panel(
            5,
            "Longest wait now",
            "Time since the job that has waited longest was queued or requeued.",
            (Query(f"max(atelier_queue_oldest_seconds{{{CHOSEN}}})"),),
            unit="s", kind="stat", width=4, height=5,
        ),
        Panel(
            6,
            "Work ahead of a new job",
            "Predicted device-seconds of queued jobs and of the rest of running jobs, divided by"
            " the pools of the model, for the model with the highest value.",
            (Query(f"max(model:atelier_queue_backlog_seconds:per_pool{{{CHOSEN}}})"),),
            unit="s", kind="stat", width=4, height=5,
        ),
    ),
)  # fmt: skip

REQUESTS = Row(
    "Requests",
    (
        Panel(
            10,
            "Requests by status",
            "To /v1, all front ends together.",
            (Query(rate("atelier_http_requests_total", V1, "status"), "{{status}}"),),
            unit="reqps", stacked=True, links=(READINESS,),
        ),
        Panel(
            11,
            "Share of 5xx",
            "Of requests that submit jobs, and of all other API requests. Thresholds:"
            " 0.1 % is the budget; 14.4 times that for an hour (1.44 %) pages the operator.",
            (
                Query("atelier:http_errors:ratio_rate5m", "{{class}} 5 min"),
                Query("atelier:http_errors:ratio_rate1h", "{{class}} 1 h"),
                Query("atelier:http_errors:ratio_rate6h", "{{class}} 6 h"),
            ),
            unit="percentunit", thresholds=((0.001, "orange"), (0.0144, "red")),
            links=(READINESS, FAILED_JOBS),
        ),
        Panel(
            12,
            "Answer times, p95",
            "From the request's arrival to the last byte. The response may include waiting for the"
            " image, and an event stream lasts as long as its job.",
            (Query(quantile(95, "atelier_http_request_duration_seconds", V1, "route, method"),
                   "{{method}} {{route}}"),),
            unit="s",
        ),
        Panel(
            13,
            "Damaged outputs, and warnings of libraries",
            "Reads in an hour whose bytes differ from those recorded: if above 0, check the store's"
            " disk, and the front ends' logs for the files. Warnings of libraries in an hour are"
            " mostly about broken files of clients.",
            (
                Query("sum(increase(atelier_outputs_damaged_total[1h]))", "damaged"),
                Query("sum(increase(atelier_library_warnings_total[1h]))", "warnings"),
            ),
            thresholds=((1, "red"),),
        ),
        Panel(
            14,
            "Connections, and why they are closed",
            "Open connections of all front ends, and those closed per second because a client was"
            " silent, slow or sent an invalid request.",
            (
                Query("sum(atelier_connections)", "open"),
                Query(rate("atelier_connections_closed_total", "", "reason"), "{{reason}}"),
            ),
            links=(READINESS,),
        ),
    ),
)  # fmt: skip

JOBS = Row(
    "Jobs",
    (
        Panel(
            20,
            "Jobs by how they ended",
            "Per second; expired: the deadline passed before the job was done.",
            (Query(rate("atelier_jobs_ended_total", BY_TENANT, "outcome"), "{{outcome}}"),),
            unit="ops", stacked=True, links=(FAILED_JOBS, EXPIRED_JOBS),
        ),
        Panel(
            21,
            "From acceptance to end",
            "Of jobs that succeeded.",
            quantiles("atelier_job_duration_seconds", f'{CHOSEN},outcome="succeeded"'),
            unit="s",
        ),
        Panel(
            22,
            "Wait in the queue",
            "From acceptance to the first claim; aim: `models.NAME.objective_s`.",
            (
                *quantiles("atelier_job_wait_seconds", BY_TENANT, percents=(50, 90)),
                Query(f"atelier:objective_seconds{{{CHOSEN}}}", "{{model}} aim"),
            ),
            unit="s", links=(WAITING_JOBS,),
        ),
        Panel(
            23,
            "Deadlines met",
            "Share of jobs with a deadline, over the hour before.",
            (Query(f"1 - model:atelier_deadlines_missed:ratio_rate1h{{{CHOSEN}}}", "{{model}}"),),
            unit="percentunit", top=1, first="red", thresholds=((0.9, "orange"), (0.95, "green")),
            links=(EXPIRED_JOBS,),
        ),
        Panel(
            24,
            "Failures by reason",
            "store: the files could not be stored; poisonous: workers crashed with the job;"
            " internal: an error of Atelier, see the worker's log; others are errors of the"
            " request.",
            (Query(rate("atelier_job_failures_total", by="reason"), "{{reason}}"),),
            unit="ops", links=(FAILED_JOBS,),
        ),
        Panel(
            25,
            "Waits by length",
            "Jobs claimed by how long they had waited.",
            (
                Query(
                    "sum by (le) (increase(atelier_job_wait_seconds_bucket"
                    f"{{{BY_TENANT}}}[$__rate_interval]))",
                    "{{le}}",
                ),
            ),
            unit="short", kind="heatmap",
        ),
        Panel(
            26,
            "Safety checks",
            "By the operator's hook, before a request is accepted and after its image is generated;"
            " absent: no verdict in time.",
            (
                Query(
                    rate("atelier_safety_checks_total", "", by="when, verdict"),
                    "{{when}} {{verdict}}",
                ),
            ),
            unit="ops",
        ),
        Panel(
            27,
            "Time of a safety check",
            "From the hook's call to its verdict, retries included.",
            (
                Query(
                    quantile(50, "atelier_safety_check_seconds", "", "when"), "{{when}} 50 %"
                ),
                Query(
                    quantile(90, "atelier_safety_check_seconds", "", "when"), "{{when}} 90 %"
                ),
            ),
            unit="s",
        ),
        Panel(
            45,
            "Reused outputs",
            "Jobs per second that received the files of an equal job (`queue.reuse`).",
            (Query(rate("atelier_jobs_reused_total"), "{{model}}"),),
            unit="ops",
        ),
        Panel(
            46,
            "Device-seconds saved",
            "Per second: the device time that generating the reused files had taken.",
            (Query(rate("atelier_reused_device_seconds_total"), "{{model}}"),),
            unit="short",
        ),
        Panel(
            47,
            "Verifications by verdict",
            "Per second: outputs that were generated again (`POST /v1/verify`). different: check"
            " the chips, layouts and versions of the workers that made the two files.",
            (Query(rate("atelier_verifications_total", "", "verdict"), "{{verdict}}"),),
            unit="ops",
        ),
        Panel(
            28,
            "Jobs that failed, of those that ended",
            "Without failures that the request caused, and without canceled jobs. 1 % is the"
            " budget; 14.4 times that for an hour pages the operator.",
            shares("model:atelier_job_failures"),
            unit="percentunit", thresholds=((0.01, "orange"), (0.144, "red")),
            links=(FAILED_JOBS,),
        ),
        Panel(
            29,
            "Jobs that were late",
            "Ended past their deadline or, without one, claimed after `models.NAME.objective_s`."
            " 5 % is the budget.",
            shares("model:atelier_jobs_late"),
            unit="percentunit", thresholds=((0.05, "orange"), (0.72, "red")),
            links=(WAITING_JOBS, EXPIRED_JOBS),
        ),
    ),
)  # fmt: skip

QUEUE = Row(
    "Queue",
    (
        Panel(
            30,
            "Jobs that wait and run",
            "As the front ends read them from the queue.",
            (Query(f"max by (model, state) (atelier_queue_jobs{{{CHOSEN}}})",
                   "{{model}} {{state}}"),),
            stacked=True, links=(WAITING_JOBS,),
        ),
        Panel(
            31,
            "Oldest that waits",
            "Time since that job was queued or requeued. Grows by a second per second"
            " if no worker claims. Alerts fire at six times the objective and, without a pool, at"
            " the time of a start.",
            (
                Query(f"max by (model) (atelier_queue_oldest_seconds{{{CHOSEN}}})", "{{model}}"),
                Query(f"6 * atelier:objective_seconds{{{CHOSEN}}}", "{{model}} six times the aim"),
                Query(f"atelier:cold_start_seconds{{{CHOSEN}}}", "{{model}} start from zero"),
            ),
            unit="s", links=(WAITING_JOBS,),
        ),
        Panel(
            32,
            "Backlog for each pool",
            "Predicted device-seconds of queued and running jobs, divided by the pools of the"
            " model: how long a new job waits. Scaling follows it; an alert fires at twice the"
            " objective.",
            (
                Query(f"model:atelier_queue_backlog_seconds:per_pool{{{CHOSEN}}}", "{{model}}"),
                Query(f"2 * atelier:objective_seconds{{{CHOSEN}}}", "{{model}} twice the aim"),
            ),
            unit="s", links=(WAITING_JOBS,),
        ),
        Panel(
            33,
            "Pools of each model",
            "Registered in the queue; ready: 1 if one of them has finished its warm-up.",
            (
                Query(f"max by (model) (atelier_model_pools{{{CHOSEN}}})", "{{model}} pools"),
                Query(f"max by (model) (atelier_model_ready{{{CHOSEN}}})", "{{model}} ready"),
            ),
            links=(READINESS,),
        ),
        Panel(
            34,
            "Taken back and tried again",
            "Leases that lapsed because a worker crashed or stalled, and jobs that were requeued,"
            " by reason. Each delays its job and does not change its pixels.",
            (
                Query(rate("atelier_reclaimed_leases_total"), "{{model}} leases"),
                Query(rate("atelier_retries_total", by="model, reason"), "{{model}} {{reason}}"),
            ),
            unit="ops", links=(FAILED_JOBS,),
        ),
        Panel(
            35,
            "Front ends that reach the queue",
            "1: this front end reaches Redis.",
            (Query("atelier_queue_up", "{{instance}}"),),
            top=1, first="red", thresholds=((1, "green"),), links=(READINESS,),
        ),
        Panel(
            36,
            "Memory of Redis",
            "At its limit (`maxmemory`) Redis refuses jobs; alerts fire at 80 and 95 % of it."
            " Without a limit there is only the used memory.",
            (Query("max by (kind) (atelier_redis_memory_bytes)", "{{kind}}"),),
            unit="bytes", links=(READINESS,),
        ),
        Panel(
            37,
            "Age of the last backup",
            "Of `atelier backup`; empty if there was none. An alert fires at two days.",
            (Query("max(atelier_backup_age_seconds)"),),
            unit="s", thresholds=((2 * 86400, "red"),),
        ),
    ),
)  # fmt: skip

VERSIONS = Row(
    "Versions",
    (
        Panel(
            70,
            "Checkpoint of each model",
            "Fingerprint of its weights and configs, as in `model_fingerprint` of jobs.",
            (
                Query(
                    f"max by (model, fingerprint) (atelier_model_info{{{CHOSEN}}})",
                    "{{model}} {{fingerprint}}",
                ),
            ),
        ),
        Panel(
            71,
            "Weights of versions",
            "Of each alias; 0: the version is on standby. Also automatic step backs.",
            (
                Query(f"max by (alias, model) (atelier_alias_weight{{{CHOSEN}}})",
                      "{{alias}}: {{model}}"),
                Query(f"sum by (alias, model) (increase(atelier_alias_step_backs_total{{{CHOSEN}}}"
                      "[$__rate_interval]))", "{{alias}}: {{model}} stepped back"),
            ),
        ),
        Panel(
            72,
            "Shadows",
            "Requests copied to a shadow version, by outcome.",
            (Query(rate("atelier_shadow_jobs_total", by="model, outcome"),
                   "{{model}} {{outcome}}"),),
            unit="ops", stacked=True,
        ),
        Panel(
            73,
            "PSNR of shadows that differ",
            "PSNR of their pixels against the pixels that clients received.",
            quantiles("atelier_shadow_psnr_db", percents=(5, 50)),
            unit="dB",
        ),
    ),
)  # fmt: skip

CLASSES = Row(
    "Tenant classes",
    (
        Panel(
            40,
            "Accepted",
            "Jobs a second, by the class of their tenant (`tenants.NAME.metrics_class`).",
            (Query(rate("atelier_jobs_accepted_total", BY_TENANT, "tenant_class"),
                   "{{tenant_class}}"),),
            unit="ops", stacked=True,
        ),
        Panel(
            41,
            "Wait, p90",
            "From acceptance to the first claim.",
            quantiles("atelier_job_wait_seconds", BY_TENANT, "tenant_class", "{{tenant_class}}",
                      (90,)),
            unit="s",
        ),
        Panel(
            42,
            "Refused",
            "queue_full: `queue.max_queued` is reached; quota_exceeded: the tenant's own limit;"
            " deadline_too_soon: no pool could meet it.",
            (Query(rate("atelier_jobs_refused_total", BY_TENANT, "reason"), "{{reason}}"),),
            unit="reqps", stacked=True,
        ),
    ),
)  # fmt: skip

SERVICE = Dashboard(
    "atelier-service",
    "Atelier: service",
    "Service level objectives: availability, latency, deadlines and failures.",
    (MODEL, TENANTS, API),
    (NOW, REQUESTS, JOBS, QUEUE, VERSIONS, CLASSES),
)
