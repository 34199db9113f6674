"""Reference page of metrics: name, type, labels and meaning, from the registries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry

from service.http.connection_limits import REASONS
from service.metrics.front_end import Telemetry

PREFIXES = ("atelier_", "gen_ai_")

LABELS = {
    "alias": "an alias of models: `atelier aliases`",
    "batch": "rows that a step was compiled for: the pool's batch sizes",
    "checkpoint": "fingerprint of the model's checkpoint",
    "chip": "a chip of the planner's table, `cpu`, or the vendor's name of the device",
    "chips": "number of chips of a worker's slice",
    "class": "`generate` (requests of all APIs that submit jobs) or `read` (all other API requests:"
    " polling, files, lists); probes and pages have neither",
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
    "kind": "of a device's memory `in_use`, `peak`, `limit`; of Redis' `used`,"
    " `limit`; of pauses `model`, `pool`",
    "layout": "mesh axes that split a step, `one device` if none does: the pool's layout and, of an"
    " elastic pool, layouts with rows in parallel",
    "method": "an HTTP method, or `other`",
    "model": "a registered model's name, or another model of its pools; empty if a refused request"
    " named none of them",
    "name": "a model, a pool of the settings or a worker that is paused",
    "outcome": "of jobs `succeeded`, `failed`, `canceled`, `expired`; of deadlines and of being in"
    " time `met`, `missed`; of requests to the API `answered`, `failed` (5xx);"
    " of a pool's jobs also `queued` (released for a retry), `lost` (the claim lapsed) and"
    " `dropped`; of shadows `equal`, `different`, `failed`, `skipped`, `dropped`; of receipts"
    " `measured`, `not_compiled`, `failed`, `dropped`; of device-seconds also `lost`"
    " (they did not contribute to the result)",
    "payer": "`tenant`, `house`",
    "phase": "`import`, `wait` (for Redis, and other hosts of a slice), `load`, `open` (adapters,"
    " upscalers), `warm_up`, `measure`",
    "preset": "a preset of the model: one of its `qualities`",
    "program": "`encode`, `step`, `decode`, `preview`",
    "reason": "of refusals the problem's `code`; of retries `lost`, `excused` (Redis was"
    " unreachable), `store`, `safety_unavailable`, `internal`; of failures the job's `error.code`;"
    " of connections"
    f" {', '.join(f'`{reason}`' for reason in REASONS)}",
    "region": "`usage.region` of the settings",
    "result": "`hit`, `miss`; of executables also `refused` (damaged, foreign, or writable by other"
    " users), `unkept`, and of those built on other machines `fetched` and `unfetched`",
    "route": "a route's template, or `none`",
    "shape": "a pool's first sixteen compiled shapes, its warm-up's first; then `other`",
    "spot": "`true`, `false`: `usage.spot` of the settings",
    "stage": "`encode`, `denoise`, `decode`, `media` (the file), `store`",
    "state": "`queued`, `running`",
    "status": "of the response",
    "tenant_class": "`tenants.NAME.metrics_class` of the settings; `default` if not set",
    "verdict": "`allowed`, `refused`, `absent` (none in time)",
    "version": "version of Atelier",
    "when": "`before` (the request), `after` (the output)",
}
"""Values of each label; none is chosen by clients."""

TEXT = """# Metrics

Written by `make reference` from the code. `/metrics` of each front end (port 8000) and, if `pools.NAME.metrics_port` is set, of each worker returns Prometheus' text format. Series with known labels are exported from the start, with 0. If the scraper accepts protobuf, histograms are also native ones ([docs/guides/monitoring.md](../guides/monitoring.md#native-histograms)). On several hosts, the first process exports the metrics of the model, and the others only those of their devices' memory. Front ends and workers also export the `process_` metrics of the Prometheus client; workers also its `python_` metrics.

| metric | type | labels | page | meaning |
|---|---|---|---|---|
{rows}

## Labels

| label | values |
|---|---|
{labels}

No label contains a tenant, a job or other text supplied by clients. The number of a front end's series is proportional to models times tenant classes; a worker's to its shapes (at most seventeen) times layouts and batch sizes.

## Definitions

- **Ends.** `atelier_jobs_ended_total`, `atelier_job_duration_seconds` and `atelier_job_deadlines_total` count each job once, in the process whose call ended it: workers finish and fail jobs, front ends cancel them. Any script may detect an expired deadline or a lapsed lease. It records the end in Redis, and the front end that reaps next counts it. So use the sum over all pages. A killed process loses the counts since the last scrape.
- **The ledger.** Redis stores the sums `atelier_ledger_jobs_total`, `atelier_images_total`, `atelier_videos_total`, `atelier_frames_total`, `atelier_pixels_total` and `atelier_job_device_seconds_total`. The script that writes the [ledger](../operations/usage.md)'s record of a job's end updates them. So a lost process loses nothing, and the sums always equal those of all records. All front ends export the same values: use the maximum. They are absent while Redis is unavailable. [docs/operations/usage.md](../operations/usage.md) defines who pays for a device-second.
- **Start-up.** `atelier_startup_seconds` has one value per phase of a worker's start. Their sum is the time from the start of the process until the worker accepts jobs, without the wait for another model of the same worker.
- **OpenTelemetry's name.** `gen_ai_server_request_duration_seconds` is `gen_ai.server.request.duration` of OpenTelemetry's conventions for generative AI, in Prometheus' spelling. It has the times of `atelier_job_duration_seconds`, with the labels and buckets of the conventions. Pushed by OTLP, it has the conventions' spelling.
- **Deadlines.** Met: the job succeeded before its deadline. Missed: it expired, failed, or succeeded too late. Canceled jobs count as neither.
- **In time.** `atelier_jobs_in_time_total` counts a job with a deadline when it ends, like `atelier_job_deadlines_total`, and a job without one at its first claim: met, if it has waited at most `models.NAME.objective_s`. Front ends export that value, which workers register, as `atelier_objective_seconds`.
- **Refused.** `atelier_jobs_refused_total` counts a request under the model that its body or address names, even if the body is otherwise invalid; or under the only model if the request names none.
- **Backlog.** `atelier_queue_backlog_device_seconds` is the predicted cost of the jobs at admission, without the steps that snapshots preserve, and for running jobs of their remaining steps. A device-second is a second of a whole mesh slice, whatever its number of chips. So the backlog divided by the number of pools is about the time that they need. A job submitted before its model was ever measured counts as one. A registered model without jobs and pools has 0. All front ends export the same values: use the maximum. The value is read at each scrape, and absent while Redis is unavailable.
- **Waits.** `atelier_job_wait_seconds` ends with a job's first claim; `atelier_queue_oldest_seconds` starts over when a job is requeued.
- **Operations.** `atelier_flops_total` counts the products and convolutions of the images' steps, without padding, text encoders and decoding. The planner counts them in the traced program, and a loop's body as often as it runs; the compiler's `cost_analysis` counts it once. `atelier_peak_flops` is the vendor's dense bfloat16 rate of all chips of the slice, whatever the model's dtype. It is absent for CPUs and for chips that `workers/slice/chips.py` does not contain. The first divided by the second and by `atelier_device_step_seconds_total` is the MFU of the steps.
- **Batch fill.** `atelier_steps_total` divided by the sum of itself and `atelier_padding_rows_total`.
- **Waiting for the host.** `atelier_device_wait_seconds_total` divided by the sum of itself and `atelier_device_step_seconds_total`.
- **Memory.** As reported by the device's runtime; CPUs report nothing. On several hosts, each process exports its own devices.
- **Compile cache.** Events of JAX: hits in the folder of `compile_cache`, and misses that were compiled and stored.
- **Executables.** Looked up before that cache, in a subfolder. A hit is neither traced nor looked up in JAX's cache, so a worker whose programs are all hits counts nothing there. Facts of tracing (a row's shapes, operations of a step) are also files, and are not counted.
"""  # noqa: E501 - a paragraph is a line there


@dataclass(frozen=True)
class Family:
    """Prometheus metric family: name, kind, labels and meaning."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


def families(registry: CollectorRegistry) -> dict[str, Family]:
    """Return this project's metric families by name; counters end in `_total`."""
    by_name: dict[str, Family] = {}
    for collector in set(registry._collector_to_names):
        for described in collector.describe() if hasattr(collector, "describe") else ():
            name = described.name + ("_total" if described.type == "counter" else "")
            if name.startswith(PREFIXES):
                of = collector if hasattr(collector, "_labelnames") else described
                labels: Any = getattr(of, "_labelnames", ())
                by_name[name] = Family(name, described.type, tuple(labels), described.documentation)
    return by_name


def pages() -> dict[str, dict[str, Family]]:
    """Return the metric families of each process that exports /metrics."""
    import workers.pool.metrics  # noqa: F401 - makes the pool's families

    return {"front end": families(Telemetry().registry), "pool": families(REGISTRY)}


def as_markdown() -> str:
    """Return the reference page of metrics."""
    rows = "\n".join(sorted(_rows()))
    labels = "\n".join(f"| `{name}` | {values} |" for name, values in LABELS.items())
    return TEXT.format(rows=rows, labels=labels)


def _rows() -> Iterator[str]:
    pages_of = pages()
    for name in {name for page in pages_of.values() for name in page}:
        where = [page for page, families_of_page in pages_of.items() if name in families_of_page]
        family = pages_of[where[0]][name]
        labels = ", ".join(f"`{label}`" for label in family.labels)
        yield f"| `{name}` | {family.kind} | {labels} | {', '.join(where)} | {family.meaning} |"
