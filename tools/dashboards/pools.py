"""The pools: whether the chips do what they could."""

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
    "What they do now",
    (
        Panel(
            1,
            "Pools that are ready",
            "Have loaded their model and finished their warm-up.",
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
            "Of those that all pools have.",
            (Query(f"sum(atelier_slots_busy{{{HERE}}}) / sum(atelier_slots{{{HERE}}})"),),
            unit="percentunit", kind="stat", width=4, height=5, top=1,
        ),
        Panel(
            5,
            "Waiting for the host",
            "Of the time that the chips had something to do: an upper bound.",
            (Query(f"avg(instance:atelier_device_wait:ratio_rate5m{{{HERE}}})"),),
            unit="percentunit", kind="stat", width=4, height=5, top=1,
            thresholds=((0.05, "orange"), (0.1, "red")),
        ),
        Panel(
            6,
            "Of the chips' peak (MFU)",
            "FLOP/s of the networks over the chips' peak while they step. Absent where the peak is"
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
            "A second, of images.",
            (Query(rate("atelier_steps_total", HERE, "model, instance"),
                   "{{model}} {{instance}}"),),
            unit="ops", stacked=True, links=(RUNNING_JOBS,),
        ),
        Panel(
            11,
            "Time of a step, median",
            "Of one batch, by the image's size and by how the slice splits the work.",
            quantiles("atelier_step_seconds", HERE, "model, shape, layout",
                      "{{model}} {{shape}} {{layout}}", (50,)),
            unit="s",
        ),
        Panel(
            12,
            "Time of a step, p95",
            "As beside it; far above the median something disturbs the pool.",
            quantiles("atelier_step_seconds", HERE, "model, shape, layout",
                      "{{model}} {{shape}} {{layout}}", (95,)),
            unit="s",
        ),
        Panel(
            13,
            "Slots",
            "In use, over five minutes, as a share of those that there are. Low while jobs wait:"
            " they have shapes that do not go together.",
            (Query(f"instance:atelier_slots_busy:ratio_avg5m{{{HERE}}}",
                   "{{model}} {{instance}}"),),
            unit="percentunit", top=1, links=(RUNNING_JOBS,),
        ),
        Panel(
            14,
            "Rows that only fill up",
            "Share of computed rows that belong to no image.",
            (Query(share("atelier_padding_rows_total", "atelier_steps_total", HERE), "{{model}}"),),
            unit="percentunit", top=1,
        ),
        Panel(
            15,
            "Steps, and waiting for the host",
            "Share of the time in which the chips step, and in which they could and wait"
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
            "While the chips step, over half an hour, so that load does not move it; sizes do.",
            (Query(f"model:atelier_mfu:ratio_rate30m{{{CHOSEN}}}", "{{model}}"),),
            unit="percentunit", top=1,
        ),
        Panel(
            17,
            "FLOP/s",
            "What the networks' own arithmetic comes to, padding not counted as work.",
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
            "By device; absent where the backend does not tell, as CPUs do not.",
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
            "Share of the time, by program; loading from the cache is in it. After the warm-up it"
            " should be nothing.",
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
            "Programs a minute that were found in `compile_cache`, and that were not: whole"
            " executables, and JAX's own cache, which is asked for what is not there as one.",
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
            "Experts brought to the chip",
            "How often, and the share of the time that it takes, where the two experts of Wan 2.2"
            " take turns on a chip.",
            (
                Query(rate("atelier_expert_swap_seconds_total", HERE), "{{model}}, share of time"),
                Query(rate("atelier_expert_swaps_total", HERE), "{{model}}, a second"),
            ),
        ),
        Panel(
            27,
            "Models by turns",
            "Which model's weights are on the devices, how often one comes, and the seconds that"
            " each swap takes. Many swaps of long: raise `pools.NAME.turn_s`, or make a pool more.",
            (
                Query(f"sum by (model) (atelier_model_on_devices{{{HERE}}})", "{{model}} is there"),
                Query(rate("atelier_model_swaps_total", HERE), "{{model}} comes, a second"),
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
            "Adapters brought to the chip",
            "How often, the seconds each takes beside the steps, and the share of the banks' pages"
            " that adapters have. Many loads and full banks: raise `models.NAME.lora_pages`.",
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
            25,
            "Device-seconds, over those predicted",
            "1: as predicted. Waits, deadlines and scaling stand on the predictions.",
            quantiles("atelier_job_cost_ratio", HERE, percents=(10, 50, 90)),
        ),
        Panel(
            28,
            "PSNR that presets kept",
            "Of the images and videos that were drawn again exactly while devices were idle, in the"
            " time that is shown: half of them kept more than p50, 95 of 100 more than p5. Below"
            " what the preset promises: calibrate again (`atelier calibrate`), with prompts like"
            " those that come.",
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
            "Images drawn again exactly",
            "A minute, by outcome, of the sample that `pools.NAME.receipts` keeps. Mostly"
            " not_compiled: name the exact request among the warm-up requests; mostly dropped:"
            " devices are never idle, or the share is too large.",
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
            "By outcome; lost: the lease had lapsed, another pool has the job; queued: it was"
            " given back.",
            (Query(rate("atelier_pool_jobs_total", HERE, "outcome"), "{{outcome}}"),),
            unit="ops", stacked=True, links=(FAILED_JOBS,),
        ),
        Panel(
            31,
            "Claimed, resumed, put aside",
            "Resumed: images that went on from a snapshot; put aside: running jobs that made"
            " room for others.",
            (
                Query(rate("atelier_claims_total", HERE), "{{model}} claimed"),
                Query(rate("atelier_resumed_total", HERE), "{{model}} resumed"),
                Query(rate("atelier_preemptions_total", HERE), "{{model}} put aside"),
            ),
            unit="ops",
        ),
        Panel(
            32,
            "Files",
            "Bytes a second into the store, by type.",
            (Query(rate("atelier_output_bytes_total", HERE, "content_type"), "{{content_type}}"),),
            unit="Bps", stacked=True,
        ),
    ),
)  # fmt: skip

COMING = Row(
    "Machines that come and go",
    (
        Panel(
            40,
            "Ready",
            "1 after the warm-up, while the pool takes jobs.",
            (Query(f"atelier_pool_ready{{{HERE}}}", "{{model}} {{instance}}"),),
            top=1, first="red", thresholds=((1, "green"),),
        ),
        Panel(
            41,
            "Snapshots",
            "Tries a minute to keep how far images are, and those that failed.",
            (
                Query("60 * " + rate("atelier_snapshots_total", HERE), "{{model}}"),
                Query("60 * " + rate("atelier_snapshot_failures_total", HERE), "{{model}} failed"),
            ),
            links=(RUNNING_JOBS,),
        ),
        Panel(
            42,
            "What snapshots take",
            "Share of the time; `pools.*.snapshot_share` (1 %) of the steps' time, twice that with"
            " what is put aside for others.",
            (Query(rate("atelier_snapshot_seconds_total", HERE), "{{model}}"),),
            unit="percentunit",
        ),
        Panel(
            43,
            "Started",
            "How long ago each process began: falls to nothing where one is started again.",
            (Query('time() - process_start_time_seconds{job=~"(.*/)?atelier-(frontend|pools)"}',
                   "{{instance}}"),),
            unit="s", width=16,
        ),
        Panel(
            44,
            "Scraped",
            "1: the metrics page answers.",
            (Query('up{job=~"(.*/)?atelier-(frontend|pools)"}', "{{instance}}"),),
            top=1, first="red", thresholds=((1, "green"),),
        ),
    ),
)  # fmt: skip

POOLS = Dashboard(
    "atelier-pools",
    "Atelier: pools",
    "Whether the chips do what they could.",
    (MODEL, POOL, API),
    (NOW, STEPS, PROGRAMS, JOBS, COMING),
)
