"""Dashboard of cost: what is paid, what comes of it, and how much is left of what was allowed."""

from __future__ import annotations

from tools.dashboards.panels import Dashboard, Panel, Query, Row
from tools.dashboards.queries import CHOSEN, MODEL

LATEST = "last_over_time({}[2m])"
"""Over a scrape that failed."""


def told(metric: str, by: str, where: str = CHOSEN, over: str = "$__rate_interval") -> str:
    """A second, of a sum that Redis keeps: each front end tells it alike."""
    series = f"max without (instance) (rate({metric}{{{where}}}[{over}]))"
    return f"sum by ({by}) ({series})"


def at_present(metric: str, where: str = CHOSEN) -> str:
    """Query a gauge's last value."""
    return LATEST.format(f"{metric}{{{where}}}")


def of_api(extra: str = "") -> str:
    """Requests to the API in the time that is shown."""
    where = f'route=~"/v1/.+"{extra}'
    return f"sum(increase(atelier_http_requests_total{{{where}}}[$__range]))"


FAILED_REQUESTS = of_api(',status=~"5.."')
BUDGET = f"1 - ({FAILED_REQUESTS} or vector(0)) / (0.001 * {of_api()} > 0)"

COST = Row(
    "Cost",
    (
        Panel(
            1,
            "Spending an hour",
            "Chips that are there, at the prices of deploy/prometheus/rules/prices.yaml.",
            (Query(f"sum(model:atelier_spend:dollars_per_hour{{{CHOSEN}}})"),),
            unit="currencyUSD", kind="stat", width=4, height=5,
        ),
        Panel(
            2,
            "Chips without a price",
            "They are missing in the spending: prices.yaml does not name their kind.",
            (Query("atelier:chips_without_price:sum"),),
            kind="stat", width=4, height=5, thresholds=((1, "red"),),
        ),
        Panel(
            3,
            "Goodput",
            "Share of the device-seconds of ended jobs that made what was delivered; the rest went"
            " into lost attempts, cancels, failures and expired jobs.",
            (Query(f"avg(model:atelier_goodput:ratio_rate1h{{{CHOSEN}}})"),),
            unit="percentunit", kind="stat", width=4, height=5, top=1, first="red",
            thresholds=((0.8, "orange"), (0.95, "green")),
        ),
        Panel(
            4,
            "MFU over paid time",
            "Operations over what the chips could have done in all the time that they were there."
            " Absent where the peak is unknown.",
            (Query(f"avg(model:atelier_paid_mfu:ratio1h{{{CHOSEN}}})"),),
            unit="percentunit", kind="stat", width=4, height=5, top=1,
        ),
        Panel(
            5,
            "Error budget left",
            "Of the 0.1 % of requests that may fail, in the time that is shown: choose 30 days for"
            " the promise's own. Below 0 it is used up.",
            (Query(BUDGET),),
            unit="percentunit", kind="stat", width=4, height=5, top=1, first="red",
            thresholds=((0, "orange"), (0.5, "green")),
        ),
        Panel(
            6,
            "Workers by version",
            "And by checkpoint: more than one of a model while a change is rolled out.",
            (Query(
                "count by (model, version, checkpoint) "
                f"({at_present('atelier_worker_info')})",
                "{{model}} {{version}} {{checkpoint}}",
            ),),
            kind="bargauge", width=4, height=5,
        ),
        Panel(
            10,
            "Cost of an image",
            "Spending of the last hour over the images delivered in it, idle time and starts"
            " included.",
            (Query(f"model:atelier_image_cost:dollars1h{{{CHOSEN}}}", "{{model}}"),),
            unit="currencyUSD",
        ),
        Panel(
            11,
            "Cost of a frame",
            "As beside it, of videos.",
            (Query(f"model:atelier_frame_cost:dollars1h{{{CHOSEN}}}", "{{model}}"),),
            unit="currencyUSD",
        ),
        Panel(
            12,
            "Spending by model",
            "An hour.",
            (Query(f"model:atelier_spend:dollars_per_hour{{{CHOSEN}}}", "{{model}}"),),
            unit="currencyUSD", stacked=True,
        ),
    ),
)  # fmt: skip

MADE = Row(
    "What it makes",
    (
        Panel(
            20,
            "Images and videos",
            "Delivered, a second.",
            (
                Query(told("atelier_images_total", "model"), "{{model}} images"),
                Query(told("atelier_videos_total", "model"), "{{model}} videos"),
                Query(told("atelier_frames_total", "model"), "{{model}} frames"),
            ),
            unit="ops",
        ),
        Panel(
            21,
            "Pixels",
            "Of images and frames, a second: what sizes cost is easier to see by these.",
            (Query(told("atelier_pixels_total", "model"), "{{model}}"),),
            stacked=True,
        ),
        Panel(
            22,
            "Ends",
            "Of jobs, as the ledger has them, a second.",
            (Query(told("atelier_ledger_jobs_total", "outcome"), "{{outcome}}"),),
            unit="ops", stacked=True,
        ),
        Panel(
            23,
            "Device-seconds by what became of them",
            "A second: pools that were busy for it. lost: attempts of pools that died or were"
            " drained, as far as no snapshot carried them on.",
            (Query(told("atelier_job_device_seconds_total", "outcome"), "{{outcome}}"),),
            stacked=True,
        ),
        Panel(
            24,
            "Device-seconds by who pays",
            "As beside it. docs/operations/usage.md has the rule.",
            (Query(told("atelier_job_device_seconds_total", "payer"), "{{payer}}"),),
            stacked=True,
        ),
        Panel(
            25,
            "Device-seconds by tenant class",
            "As beside it.",
            (Query(told("atelier_job_device_seconds_total", "tenant_class"), "{{tenant_class}}"),),
            stacked=True,
        ),
    ),
)  # fmt: skip

CAPACITY = Row(
    "Capacity",
    (
        Panel(
            30,
            "Pools needed, and there",
            "Needed: for the present load, and to work off what waits in ten minutes. Allowed: the"
            " autoscaler's maximum, where kube-state-metrics tells it.",
            (
                Query(f"model:atelier_pools_needed:rate15m{{{CHOSEN}}}", "{{model}} needed"),
                Query(f"max by (model) (atelier_model_pools{{{CHOSEN}}})", "{{model}} there"),
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
            " programs, trying them out. It is paid for, and newcomers wait for it.",
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
            "Records that wait",
            "In Redis, for their hourly file in the store.",
            (Query("max(atelier_ledger_pending_records)"),),
            width=12,
        ),
        Panel(
            41,
            "Age of the oldest",
            "More than an hour and some minutes: no front end can write to the store.",
            (Query("max(atelier_ledger_pending_seconds)"),),
            unit="s", width=12, thresholds=((2 * 3600, "red"),),
        ),
    ),
)  # fmt: skip

COSTS = Dashboard(
    "atelier-cost",
    "Atelier: cost",
    "What is paid for, what comes of it, and what is left of what was allowed.",
    (MODEL,),
    (COST, MADE, CAPACITY, LEDGER),
)
