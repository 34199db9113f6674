"""Grafana dashboard of costs: spending, results, capacity and the ledger."""

from __future__ import annotations

from service.jobs.model.job import CLIENT_ERRORS
from tools.dashboards.panels import Dashboard, Panel, Query, Row
from tools.dashboards.queries import CHOSEN, MODEL

LATEST = "last_over_time({}[2m])"
"""Last value within 2 minutes, to bridge a failed scrape."""


def ledger_rate(metric: str, by: str, where: str = CHOSEN, over: str = "$__rate_interval") -> str:
    """Query the per-second rate of a total in Redis, which every front end exports identically."""
    series = f"max without (instance) (rate({metric}{{{where}}}[{over}]))"
    return f"sum by ({by}) ({series})"


def at_present(metric: str, where: str = CHOSEN) -> str:
    """Query a gauge's last value."""
    return LATEST.format(f"{metric}{{{where}}}")


def budget_left(bad: str, every: str, allowed: float, by: str) -> str:
    """Query the share of an error budget that is left in the dashboard's time range.

    Args:
        bad: counter of the events that use up the budget.
        every: counter of all events.
        allowed: share of the events that may be bad.
    """
    total_bad, total = (f"sum by ({by}) (increase({metric}[$__range]))" for metric in (bad, every))
    return f"1 - {total_bad} / ({allowed:g} * {total} > 0)"


SERVICES_FAULT = f'{CHOSEN},reason!~"{"|".join(sorted(CLIENT_ERRORS))}"'

COST = Row(
    "Cost",
    (
        Panel(
            1,
            "Spending an hour",
            "Running chips, at the prices of deploy/prometheus/rules/prices.yaml.",
            (Query(f"sum(model:atelier_spend:dollars_per_hour{{{CHOSEN}}})"),),
            unit="currencyUSD", kind="stat", width=4, height=5,
        ),
        Panel(
            2,
            "Chips without a price",
            "Not included in the spending, because prices.yaml does not contain their kind.",
            (Query("atelier:chips_without_price:sum"),),
            kind="stat", width=4, height=5, thresholds=((1, "red"),),
        ),
        Panel(
            3,
            "Goodput",
            "Share of the device-seconds of ended jobs that generated delivered outputs; the rest"
            " was lost attempts, cancellations, failures and expired jobs.",
            (Query(f"avg(model:atelier_goodput:ratio_rate1h{{{CHOSEN}}})"),),
            unit="percentunit", kind="stat", width=4, height=5, top=1, first="red",
            thresholds=((0.8, "orange"), (0.95, "green")),
        ),
        Panel(
            4,
            "MFU over paid time",
            "Operations, divided by the chips' peak over the whole time that they were running."
             " Absent if the peak is unknown.",
            (Query(f"avg(model:atelier_paid_mfu:ratio1h{{{CHOSEN}}})"),),
            unit="percentunit", kind="stat", width=4, height=5, top=1,
        ),
        Panel(
            6,
            "Workers by version",
            "Also by checkpoint: several of one model while a change is rolled out.",
            (Query(
                "count by (model, version, checkpoint) "
                f"({at_present('atelier_worker_info')})",
                "{{model}} {{version}} {{checkpoint}}",
            ),),
            kind="bargauge", height=5,
        ),
        Panel(
            10,
            "Cost of an image",
            "Spending of the last hour divided by the images delivered in it, idle time and starts"
            " included.",
            (Query(f"model:atelier_image_cost:dollars1h{{{CHOSEN}}}", "{{model}}"),),
            unit="currencyUSD",
        ),
        Panel(
            11,
            "Cost of a frame",
            "Spending of the last hour divided by the frames of delivered videos.",
            (Query(f"model:atelier_frame_cost:dollars1h{{{CHOSEN}}}", "{{model}}"),),
            unit="currencyUSD",
        ),
        Panel(
            12,
            "Spending by model",
            "Per hour.",
            (Query(f"model:atelier_spend:dollars_per_hour{{{CHOSEN}}}", "{{model}}"),),
            unit="currencyUSD", stacked=True,
        ),
    ),
)  # fmt: skip

OBJECTIVES = Row(
    "Error budgets",
    (
        Panel(
            5,
            "Error budget left",
            "Of the 0.1 % of requests that may get a 5xx, for those that submit jobs and for all"
            " others, in the selected time range: select 30 days for the objective's own. Below 0"
            " the budget is spent.",
            (Query(
                budget_left(
                    'atelier_api_requests_total{outcome="failed"}',
                    "atelier_api_requests_total", 0.001, "class",
                ),
                "{{class}}",
            ),),
            unit="percentunit", kind="bargauge", height=5, top=1, first="red",
            thresholds=((0, "orange"), (0.5, "green")),
        ),
        Panel(
            7,
            "Error budget left: failed jobs",
            "Of the 1 % of jobs that may fail without a fault of their request.",
            (Query(
                budget_left(
                    f"atelier_job_failures_total{{{SERVICES_FAULT}}}",
                    f'atelier_jobs_ended_total{{{CHOSEN},outcome!="canceled"}}', 0.01, "model",
                ),
                "{{model}}",
            ),),
            unit="percentunit", kind="bargauge", height=5, top=1, first="red",
            thresholds=((0, "orange"), (0.5, "green")),
        ),
        Panel(
            8,
            "Error budget left: late jobs",
            "Of the 5 % of jobs that may miss their deadline or, without one, wait longer than"
            " `models.NAME.objective_s`.",
            (Query(
                budget_left(
                    f'atelier_jobs_in_time_total{{{CHOSEN},outcome="missed"}}',
                    f"atelier_jobs_in_time_total{{{CHOSEN}}}", 0.05, "model",
                ),
                "{{model}}",
            ),),
            unit="percentunit", kind="bargauge", height=5, top=1, first="red",
            thresholds=((0, "orange"), (0.5, "green")),
        ),
    ),
)  # fmt: skip

MADE = Row(
    "Outputs",
    (
        Panel(
            20,
            "Images and videos",
            "Delivered per second.",
            (
                Query(ledger_rate("atelier_images_total", "model"), "{{model}} images"),
                Query(ledger_rate("atelier_videos_total", "model"), "{{model}} videos"),
                Query(ledger_rate("atelier_frames_total", "model"), "{{model}} frames"),
            ),
            unit="ops",
        ),
        Panel(
            21,
            "Pixels",
            "Of images and frames, per second. Costs of sizes are easier to compare by pixels.",
            (Query(ledger_rate("atelier_pixels_total", "model"), "{{model}}"),),
            stacked=True,
        ),
        Panel(
            22,
            "Ends",
            "Ended jobs per second, from the ledger.",
            (Query(ledger_rate("atelier_ledger_jobs_total", "outcome"), "{{outcome}}"),),
            unit="ops", stacked=True,
        ),
        Panel(
            23,
            "Device-seconds by outcome",
            "Per second: the number of busy pools. lost: attempts of workers that crashed or were"
            " drained, without the steps that snapshots preserved.",
            (Query(ledger_rate("atelier_job_device_seconds_total", "outcome"), "{{outcome}}"),),
            stacked=True,
        ),
        Panel(
            24,
            "Device-seconds by who pays",
            "Per second, by payer. docs/operations/usage.md has the rule.",
            (Query(ledger_rate("atelier_job_device_seconds_total", "payer"), "{{payer}}"),),
            stacked=True,
        ),
        Panel(
            25,
            "Device-seconds by tenant class",
            "Per second, by tenant class.",
            (Query(
                ledger_rate("atelier_job_device_seconds_total", "tenant_class"),
                "{{tenant_class}}",
            ),),
            stacked=True,
        ),
    ),
)  # fmt: skip

CAPACITY = Row(
    "Capacity",
    (
        Panel(
            30,
            "Pools needed and present",
            "Needed: for the current load, and to process the queue in ten minutes. Allowed: the"
            " autoscaler's maximum, if kube-state-metrics exports it.",
            (
                Query(f"model:atelier_pools_needed:rate15m{{{CHOSEN}}}", "{{model}} needed"),
                Query(f"max by (model) (atelier_model_pools{{{CHOSEN}}})", "{{model}} present"),
                Query(
                    "kube_horizontalpodautoscaler_spec_max_replicas"
                    '{horizontalpodautoscaler=~"keda-hpa-atelier-pool.*"}',
                    "{{horizontalpodautoscaler}} allowed",
                ),
            ),
        ),
        Panel(
            31,
            "Chips",
            "By kind, on spot machines and others.",
            (Query(f"sum by (chip, spot) ({at_present('atelier_worker_chips')})",
                   "{{chip}} spot {{spot}}"),),
            stacked=True,
        ),
        Panel(
            32,
            "Time of a start, by phase",
            "Of the slowest worker: imports, waiting for Redis and other hosts, weights, adapters,"
            " programs, trial runs. This time is paid for, and new jobs wait for it.",
            (Query(f"max by (phase) ({at_present('atelier_startup_seconds')})", "{{phase}}"),),
            unit="s", stacked=True,
        ),
    ),
)  # fmt: skip

LEDGER = Row(
    "Ledger",
    (
        Panel(
            40,
            "Pending records",
            "Records in Redis that are not yet in an hourly file in the store.",
            (Query("max(atelier_ledger_pending_records)"),),
            width=12,
        ),
        Panel(
            41,
            "Age of the oldest",
            "If more than an hour and some minutes, no front end can write to the store.",
            (Query("max(atelier_ledger_pending_seconds)"),),
            unit="s", width=12, thresholds=((2 * 3600, "red"),),
        ),
    ),
)  # fmt: skip

COSTS = Dashboard(
    "atelier-cost",
    "Atelier: cost",
    "Spending, outputs, capacity and the remaining error budget.",
    (MODEL,),
    (COST, OBJECTIVES, MADE, CAPACITY, LEDGER),
)
