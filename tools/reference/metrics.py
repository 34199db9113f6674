"""Metrics: every one by name, type, labels and meaning, from the code that reports it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry

from service.http.connection_limits import REASONS
from service.metrics.http import Telemetry

PREFIXES = ("atelier_", "gen_ai_")

LABELS = {
    "alias": "an alias of models: `atelier aliases`",
    "batch": "rows that a step was compiled for: the pool's batch sizes",
    "checkpoint": "fingerprint of the model's checkpoint",
    "chip": "a chip of the planner's table, `cpu`, or what the device's maker calls it",
    "chips": "number of chips of a worker's slice",
    "class": "`generate` (requests that ask for work, of all APIs) or `read` (all others to the"
    " API: polling, files, lists); probes and pages are neither",
    "content_type": "PNG, JPEG, WebP, GIF, MP4, WebM, or `other`",
    "device": "JAX's number of a device of this process",
    "error_type": "empty for jobs that succeeded; else the job's `error.code`, `canceled` or"
    " `expired`",
    "fingerprint": "that of a registered model's checkpoint",
    "gen_ai_operation_name": "`generate_content`",
    "gen_ai_provider_name": "`atelier`",
    "gen_ai_request_model": "the registered model that the request names",
    "gen_ai_response_model": "the model whose workers serve it: the same, or the one that it is"
    " derived from",
    "kind": "of memory `in_use`, `peak`, `limit`; of pauses `model`, `pool`",
    "layout": "mesh axes that split a step, `one device` where none does: the pool's own and, of an"
    " elastic pool, those with images side by side",
    "method": "HTTP's own, or `other`",
    "model": "a registered model's name, or one that its pools serve beside it; empty where a"
    " refused request named none of them",
    "name": "a model, a pool of the settings or a worker that is paused",
    "outcome": "of jobs `succeeded`, `failed`, `canceled`, `expired`; of deadlines and of being in"
    " time `met`, `missed`; of requests to the API `answered`, `failed` (5xx);"
    " of a pool's jobs also `queued` (given back for another try), `lost` (no longer its own) and"
    " `dropped`; of shadows `equal`, `different`, `failed`, `skipped`, `dropped`; of receipts"
    " `measured`, `not_compiled`, `failed`, `dropped`; of device-seconds also `lost`"
    " (they had no part in how the job ended)",
    "payer": "`tenant`, `house`",
    "phase": "`import`, `wait` (for Redis, and other hosts of a slice), `load`, `open` (adapters,"
    " upscalers), `warm_up`, `measure`",
    "preset": "a preset of the model: one of its `qualities`",
    "program": "`encode`, `step`, `decode`, `preview`",
    "reason": "of refusals the problem's `code`; of retries `lost`, `excused` (nobody could be"
    " heard), `store`, `safety_unavailable`, `internal`; of failures the job's `error.code`; of"
    " connections"
    f" {', '.join(f'`{reason}`' for reason in REASONS)}",
    "region": "`usage.region` of the settings",
    "result": "`hit`, `miss`; of executables also `refused` (damaged, foreign, or others may write"
    " there), `unkept`, and of those made elsewhere `fetched` and `unfetched`",
    "route": "a route's template, or `none`",
    "shape": "a pool's first sixteen compiled shapes, its warm-up's first; then `other`",
    "spot": "`true`, `false`: `usage.spot` of the settings",
    "stage": "`encode`, `denoise`, `decode`, `media` (the file), `store`",
    "state": "`queued`, `running`",
    "status": "of the answer",
    "tenant_class": "`tenants.NAME.metrics_class` of the settings; `default` where it says none",
    "verdict": "`allowed`, `refused`, `absent` (none in time)",
    "version": "version of Atelier",
    "when": "`before` (the request), `after` (the output)",
}
"""Origin of each label's values: no client chooses one."""

TEXT = """# Metrics

Written by `make reference` from the code. Prometheus' text format on `/metrics` of each front end (port 8000) and, where `pools.NAME.metrics_port` is set, of each pool. Every value that can be known before something happens is there from the start, with 0. Where a scraper asks for protobuf, histograms are native ones, too ([docs/guides/monitoring.md](../guides/monitoring.md#native-histograms)). A pool of several hosts tells of its model by its first process; the others tell of their devices' memory alone. Both have the `process_` metrics of the Prometheus client, pools its `python_` ones, too.

| metric | type | labels | page | meaning |
|---|---|---|---|---|
{rows}

## Labels

| label | values |
|---|---|
{labels}

No label names a tenant, a job or anything else that a client sends. A front end's series grow with models times tenant classes; a pool's with its shapes (seventeen at the most) times layouts and batch sizes.

## What is counted how

- **Ends.** `atelier_jobs_ended_total`, `atelier_job_duration_seconds` and `atelier_job_deadlines_total` count each job once, in the process whose call ended it: a pool finishes and fails, a front end cancels. Deadlines that pass and leases that lapse are found by whichever script meets them, written down in Redis at the same moment, and counted by the front end that reaps next. So sum over all pages. What is lost with a killed process is what it had counted since the last scrape.
- **The ledger.** `atelier_ledger_jobs_total`, `atelier_images_total`, `atelier_videos_total`, `atelier_frames_total`, `atelier_pixels_total` and `atelier_job_device_seconds_total` are sums that Redis keeps, written by the same script as the [ledger](../operations/usage.md)'s record of a job's end: nothing is lost with a process, and at any time they are exactly the sums of all records. All front ends tell the same, so take the maximum; they are absent while Redis is away. Who pays for a device-second, [docs/operations/usage.md](../operations/usage.md) says.
- **Start-up.** `atelier_startup_seconds` has one value a phase of a worker's start; their sum is the time from the process's beginning until it takes jobs, but for waiting for another model of the same worker.
- **OpenTelemetry's name.** `gen_ai_server_request_duration_seconds` is `gen_ai.server.request.duration` of OpenTelemetry's conventions for generative AI, as Prometheus spells it: the same times as `atelier_job_duration_seconds`, with the conventions' labels and buckets, for dashboards that know those. Pushed by OTLP it has the conventions' own spelling.
- **Deadlines.** Met: the job succeeded before its deadline. Missed: it expired, failed, or succeeded too late. Canceled jobs count as neither.
- **In time.** `atelier_jobs_in_time_total` counts a job with a deadline when it ends, as `atelier_job_deadlines_total` does, and one without at its first claim: met, if it has waited no longer than `models.NAME.objective_s`. Front ends tell that number as `atelier_objective_seconds`, as pools announce it.
- **Refused.** `atelier_jobs_refused_total` counts a request under the model that its body or address names, though the body be wrong otherwise, or under the only model there is where it names none.
- **Backlog.** `atelier_queue_backlog_device_seconds` is what the queue was told a job costs when it was accepted, less what snapshots keep of it, and of running jobs what is left by their steps. A device-second is a second of a whole mesh slice, however many chips it has, so the backlog over the number of pools is about the time that they need. A job that came before its model was ever measured counts as one. A registered model without jobs and pools has 0; all front ends tell the same, so take the maximum. It is read at each scrape, and absent while Redis is away.
- **Waits.** `atelier_job_wait_seconds` ends with a job's first claim; `atelier_queue_oldest_seconds` begins anew when a job is put back.
- **Operations.** `atelier_flops_total` counts the products and convolutions of the images' own steps (padding, text encoders and decoding left out), as the planner reads them off the traced program, loops as often as they run; it is not the compiler's `cost_analysis`, which counts a loop's body once. `atelier_peak_flops` is the maker's dense bfloat16 figure of all chips of the slice, whatever dtype the model runs in, and absent for chips that are not in `workers/slice/chips.py` and for CPUs. Their quotient over `atelier_device_step_seconds_total` is the MFU of the steps.
- **Batch fill.** `atelier_steps_total` over itself and `atelier_padding_rows_total`.
- **Waiting for the host.** `atelier_device_wait_seconds_total` over itself and `atelier_device_step_seconds_total`.
- **Memory.** As the device's runtime tells it; CPUs tell nothing. On several hosts each process tells of its own devices.
- **Compile cache.** JAX's own events: what it found in the folder of `compile_cache`, and what it had to compile and put there.
- **Executables.** Asked before that cache, below it in the same folder. A hit is neither traced nor looked up in JAX's cache, so that a pool whose programs are all hits counts nothing there. Facts of tracing (what a row looks like, operations of a step) are files too, and not counted.
"""  # noqa: E501 - a paragraph is a line there


@dataclass(frozen=True)
class Family:
    """A metric's name, kind, labels and meaning."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


def families(registry: CollectorRegistry) -> dict[str, Family]:
    """Return our metric families by the name that samples have, or begin with."""
    found: dict[str, Family] = {}
    for collector in set(registry._collector_to_names):
        for described in collector.describe() if hasattr(collector, "describe") else ():
            name = described.name + ("_total" if described.type == "counter" else "")
            if name.startswith(PREFIXES):
                of = collector if hasattr(collector, "_labelnames") else described
                labels: Any = getattr(of, "_labelnames", ())
                found[name] = Family(name, described.type, tuple(labels), described.documentation)
    return found


def pages() -> dict[str, dict[str, Family]]:
    """Families by whose page they are on."""
    import workers.pool.metrics  # noqa: F401 - makes the pool's families

    return {"front end": families(Telemetry().registry), "pool": families(REGISTRY)}


def as_markdown() -> str:
    """Return the page."""
    rows = "\n".join(sorted(_rows()))
    labels = "\n".join(f"| `{name}` | {values} |" for name, values in LABELS.items())
    return TEXT.format(rows=rows, labels=labels)


def _rows() -> Iterator[str]:
    pages_of = pages()
    for name in {name for page in pages_of.values() for name in page}:
        where = [page for page, known in pages_of.items() if name in known]
        one = pages_of[where[0]][name]
        labels = ", ".join(f"`{label}`" for label in one.labels)
        yield f"| `{name}` | {one.kind} | {labels} | {', '.join(where)} | {one.meaning} |"
