"""Grafana dashboard of the pools: utilization, steps, memory and compiled programs."""

from __future__ import annotations

from tools.dashboards.panels import Dashboard, Panel, Query, Row
from tools.dashboards.queries import (
    API,
    CHOSEN,
    FAILED_JOBS,
    HERE,
    MODEL,
    POOL,
    RUNNING_JOBS,
    quantiles,
    ranged,
    rate,
    share,
)

NOW = Row(
    "Current state",
    (
        Panel(
            1,
            "Ready pools",
            "Workers that have loaded their model and finished their warm-up.",
            (Query(f"sum(atelier_pool_ready{{{HERE}}})"),),
            kind="stat", width=4, height=5, first="red", thresholds=((1, "green"),),
        ),
        Panel(
            2,
            "Steps a second",
            "Denoising steps of images: a batch of four counts four times.",
            (Query(f"sum(rate(atelier_steps_total{{{HERE}}}[$__rate_interval]))"),),
            kind="stat", width=4, height=5,
        ),
        Panel(
            3,
            "Chips at work",
            "Share of the time in which a pool's chips run a step, all pools together.",
            (Query(f"avg(instance:atelier_device_busy:ratio_rate5m{{{HERE}}})"),),
            unit="percentunit", kind="stat", width=4, height=5, top=1,
        ),
        Panel(
            4,
            "Slots in use",
            "Share of the slots of all pools.",
            (Query(f"sum(atelier_slots_busy{{{HERE}}}) / sum(atelier_slots{{{HERE}}})"),),
            unit="percentunit", kind="stat", width=4, height=5, top=1,
        ),
        Panel(
            5,
            "Waiting for the host",
            "Share of the time in which steps were due: an upper bound.",
            (Query(f"avg(instance:atelier_device_wait:ratio_rate5m{{{HERE}}})"),),
            unit="percentunit", kind="stat", width=4, height=5, top=1,
            thresholds=((0.05, "orange"), (0.1, "red")),
        ),
        Panel(
            6,
            "Of the chips' peak (MFU)",
            "FLOP/s of the networks divided by the chips' peak, during steps. Absent if the peak is"
            " unknown.",
            (Query(f"avg(model:atelier_mfu:ratio_rate30m{{{CHOSEN}}})"),),
            unit="percentunit", kind="stat", width=4, height=5, top=1,
        ),
    ),
)  # fmt: skip

STEPS = Row(
    "Steps",
    (
        Panel(
            10,
            "Steps by pool",
            "Steps of images per second.",
            (Query(rate("atelier_steps_total", HERE, "model, instance"),
                   "{{model}} {{instance}}"),),
            unit="ops", stacked=True, links=(RUNNING_JOBS,),
        ),
        Panel(
            11,
            "Time of a step, median",
            "Latency of one batch's step, by image size and layout.",
            quantiles("atelier_step_seconds", HERE, "model, shape, layout",
                      "{{model}} {{shape}} {{layout}}", (50,)),
            unit="s",
        ),
        Panel(
            12,
            "Time of a step, p95",
            "If far above the median, something disturbs the pool.",
            quantiles("atelier_step_seconds", HERE, "model, shape, layout",
                      "{{model}} {{shape}} {{layout}}", (95,)),
            unit="s",
        ),
        Panel(
            13,
            "Slots",
            "Share of slots in use, over five minutes. If low while jobs wait, their buckets"
            " cannot share batches.",
            (Query(f"instance:atelier_slots_busy:ratio_avg5m{{{HERE}}}",
                   "{{model}} {{instance}}"),),
            unit="percentunit", top=1, links=(RUNNING_JOBS,),
        ),
        Panel(
            14,
            "Padding rows",
            "Share of computed rows that belong to no image, and only fill a batch.",
            (Query(share("atelier_padding_rows_total", "atelier_steps_total", HERE), "{{model}}"),),
            unit="percentunit", top=1,
        ),
        Panel(
            15,
            "Steps, and waiting for the host",
            "Share of the time in which the chips step, and in which a step is due and they wait"
            " (an upper bound). The rest is idle.",
            (
                Query(rate("atelier_device_step_seconds_total", HERE, "model, instance"),
                      "{{model}} {{instance}} steps"),
                Query(rate("atelier_device_wait_seconds_total", HERE, "model, instance"),
                      "{{model}} {{instance}} waits"),
            ),
            unit="percentunit",
        ),
        Panel(
            16,
            "Achieved of peak (MFU)",
            "During steps, over half an hour: it depends on sizes, not on load.",
            (Query(f"model:atelier_mfu:ratio_rate30m{{{CHOSEN}}}", "{{model}}"),),
            unit="percentunit", top=1,
        ),
        Panel(
            17,
            "FLOP/s",
            "Operations of the networks, without padding.",
            (Query(rate("atelier_flops_total", HERE, "model, instance"),
                   "{{model}} {{instance}}"),),
            unit="flops",
        ),
        Panel(
            18,
            "Communication's share of a step",
            "From the last profile (`atelier profile`); absent before the first.",
            (Query(f"atelier_communication_ratio{{{HERE}}}", "{{model}} {{instance}}"),),
            unit="percentunit", top=1,
        ),
    ),
)  # fmt: skip

PROGRAMS = Row(
    "Memory and programs",
    (
        Panel(
            20,
            "Memory in use, of the limit",
            "By device; absent if the backend does not report it, as on CPUs.",
            (Query('instance:atelier_device_memory:ratio{instance=~"$pool"}',
                   "{{instance}} {{device}}"),),
            unit="percentunit", top=1, thresholds=((0.97, "red"),),
        ),
        Panel(
            21,
            "Memory by kind",
            "in_use now, peak since the start, and the limit.",
            (Query('max by (instance, kind) (atelier_device_memory_bytes{instance=~"$pool"})',
                   "{{instance}} {{kind}}"),),
            unit="bytes",
        ),
        Panel(
            22,
            "Time in the compiler",
            "Share of the time, by program, including loading from the cache. After the warm-up it"
            " should be 0.",
            (
                Query(rate("atelier_compile_seconds_sum", 'instance=~"$pool"', "program, instance"),
                      "{{program}} {{instance}}"),
                Query(
                    rate("atelier_executable_read_seconds_total", 'instance=~"$pool"', "instance"),
                    "of it reading executables {{instance}}",
                ),
                Query(
                    rate("atelier_compiling_seconds_total", HERE),
                    "of it compiling what was in no file, {{model}}",
                ),
            ),
            unit="percentunit", links=(RUNNING_JOBS,),
        ),
        Panel(
            23,
            "Compile cache",
            "Programs per minute that were found in `compile_cache`, and that were not: whole"
            " executables, and JAX's own cache, which is used for programs without an executable.",
            (
                Query("60 * " + rate("atelier_executables_total", 'instance=~"$pool"', "result"),
                      "executables: {{result}}"),
                Query("60 * " + rate("atelier_compile_cache_total", 'instance=~"$pool"', "result"),
                      "JAX's cache: {{result}}"),
            ),
            stacked=True,
        ),
        Panel(
            24,
            "Expert swaps",
            "Frequency, and share of the time, if the two experts of Wan 2.2"
            " alternate on a chip.",
            (
                Query(rate("atelier_expert_swap_seconds_total", HERE), "{{model}}, share of time"),
                Query(rate("atelier_expert_swaps_total", HERE), "{{model}}, a second"),
            ),
        ),
        Panel(
            27,
            "Models that take turns",
            "The model whose weights are on the devices, the frequency of swaps, and the seconds of"
            " each. If there are many long swaps, raise `pools.NAME.turn_s`, or add a pool.",
            (
                Query(f"sum by (model) (atelier_model_on_devices{{{HERE}}})", "{{model}} loaded"),
                Query(rate("atelier_model_swaps_total", HERE), "{{model}} swaps per second"),
                Query(
                    rate("atelier_model_swap_seconds_total", HERE)
                    + " / "
                    + rate("atelier_model_swaps_total", HERE),
                    "{{model}}, seconds each",
                ),
            ),
        ),
        Panel(
            26,
            "Adapter loads",
            "Frequency, seconds of each load, and share of the banks' pages"
            " in use. If loads are frequent and banks full, raise `models.NAME.lora_pages`.",
            (
                Query(rate("atelier_adapter_loads_total", HERE), "{{model}}, a second"),
                Query(
                    rate("atelier_adapter_load_seconds_total", HERE)
                    + " / "
                    + rate("atelier_adapter_loads_total", HERE),
                    "{{model}}, seconds each",
                ),
                Query(
                    f'sum by (model) (atelier_adapter_pages{{{HERE},state="used"}})'
                    f" / sum by (model) (atelier_adapter_pages{{{HERE}}})",
                    "{{model}}, share of pages",
                ),
            ),
        ),
        Panel(
            33,
            "Encoded prompts",
            "Images per second whose encoded prompts were in the cache"
            " (`pools.NAME.prompt_cache_bytes`), or were not.",
            (Query(rate("atelier_prompt_encodings_total", HERE, "model, result"),
                   "{{model}} {{result}}"),),
            unit="ops",
        ),
        Panel(
            25,
            "Actual over predicted device-seconds",
            "1: as predicted. Waits, deadlines and scaling use the predictions.",
            quantiles("atelier_job_cost_ratio", HERE, percents=(10, 50, 90)),
        ),
        Panel(
            28,
            "PSNR of presets",
            "Of the images and videos that were regenerated exactly while devices were idle, in the"
            " selected time range: half of them are above p50, 95 of 100 above p5. If this is below"
            " the preset's promise, calibrate again (`atelier calibrate`), with prompts like"
            " your users' prompts.",
            (
                *(
                    Query(ranged("atelier_quality_psnr_db", HERE, "model, preset, le", percent),
                          f"{{{{model}}}} {{{{preset}}}} p{percent}")
                    for percent in (5, 50)
                ),
            ),
            unit="dB",
        ),
        Panel(
            29,
            "Images regenerated exactly",
            "Per minute, by outcome, of the sample of `pools.NAME.receipts`. If mostly"
            " not_compiled, add the exact request to the warm-up requests; if mostly dropped,"
            " devices are never idle, or the share is too high.",
            (Query("60 * " + rate("atelier_receipts_total", HERE, "outcome"), "{{outcome}}"),),
            stacked=True,
        ),
    ),
)  # fmt: skip

JOBS = Row(
    "Jobs",
    (
        Panel(
            30,
            "Jobs that left a pool",
            "By outcome; lost: the lease had lapsed, and another worker has the job; queued: it was"
            " released.",
            (Query(rate("atelier_pool_jobs_total", HERE, "outcome"), "{{outcome}}"),),
            unit="ops", stacked=True, links=(FAILED_JOBS,),
        ),
        Panel(
            31,
            "Claimed, resumed, preempted",
            "Resumed: images resumed from a snapshot; preempted: running jobs suspended"
            " for others.",
            (
                Query(rate("atelier_claims_total", HERE), "{{model}} claimed"),
                Query(rate("atelier_resumed_total", HERE), "{{model}} resumed"),
                Query(rate("atelier_preemptions_total", HERE), "{{model}} preempted"),
            ),
            unit="ops",
        ),
        Panel(
            32,
            "Files",
            "Bytes per second written to the store, by type.",
            (Query(rate("atelier_output_bytes_total", HERE, "content_type"), "{{content_type}}"),),
            unit="Bps", stacked=True,
        ),
    ),
)  # fmt: skip

COMING = Row(
    "Starts and snapshots",
    (
        Panel(
            40,
            "Ready",
            "1 after the warm-up, while the pool accepts jobs.",
            (Query(f"atelier_pool_ready{{{HERE}}}", "{{model}} {{instance}}"),),
            top=1, first="red", thresholds=((1, "green"),),
        ),
        Panel(
            41,
            "Snapshots",
            "Attempts per minute to store the state of unfinished images, and failures.",
            (
                Query("60 * " + rate("atelier_snapshots_total", HERE), "{{model}}"),
                Query("60 * " + rate("atelier_snapshot_failures_total", HERE), "{{model}} failed"),
            ),
            links=(RUNNING_JOBS,),
        ),
        Panel(
            42,
            "Time of snapshots",
            "Share of the time: `pools.*.snapshot_share` (1 %) of the steps' time, twice that with"
            " preemptions.",
            (Query(rate("atelier_snapshot_seconds_total", HERE), "{{model}}"),),
            unit="percentunit",
        ),
        Panel(
            43,
            "Started",
            "Age of each process; drops to 0 at a restart.",
            (Query('time() - process_start_time_seconds{job=~"(.*/)?atelier-(frontend|pools)"}',
                   "{{instance}}"),),
            unit="s", width=16,
        ),
        Panel(
            44,
            "Scraped",
            "1: the metrics endpoint answers.",
            (Query('up{job=~"(.*/)?atelier-(frontend|pools)"}', "{{instance}}"),),
            top=1, first="red", thresholds=((1, "green"),),
        ),
    ),
)  # fmt: skip

POOLS = Dashboard(
    "atelier-pools",
    "Atelier: pools",
    "Utilization of the chips: slots, steps, memory, programs and jobs.",
    (MODEL, POOL, API),
    (NOW, STEPS, PROGRAMS, JOBS, COMING),
)
