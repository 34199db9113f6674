"""Metrics: every one by name, type, labels and meaning, from the code that reports it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry

from service.http.connection_limits import REASONS
from service.metrics.http import Telemetry

PREFIX = "atelier_"

LABELS = {
    "batch": "rows that a step was compiled for: the pool's batch sizes",
    "content_type": "PNG, JPEG, WebP, GIF, MP4, WebM, or `other`",
    "device": "JAX's number of a device of this process",
    "kind": "`in_use`, `peak`, `limit`",
    "layout": "mesh axes that split a step, `one device` where none does: the pool's own and, of an"
    " elastic pool, those with images side by side",
    "method": "HTTP's own, or `other`",
    "model": "a registered model's name; empty where a refused request named none of them",
    "outcome": "of jobs `succeeded`, `failed`, `canceled`, `expired`; of deadlines `met`, `missed`;"
    " of a pool's jobs also `queued` (given back for another try), `lost` (no longer its own) and"
    " `dropped`",
    "program": "`encode`, `step`, `decode`, `preview`",
    "reason": "of refusals the problem's `code`; of retries `lost`, `excused` (nobody could be"
    " heard), `store`, `safety_unavailable`, `internal`; of failures the job's `error.code`; of"
    " connections"
    f" {', '.join(f'`{reason}`' for reason in REASONS)}",
    "result": "`hit`, `miss`; of executables also `refused` (damaged, foreign, or others may write"
    " there) and `unkept`",
    "route": "a route's template, or `none`",
    "shape": "a pool's first sixteen compiled shapes, its warm-up's first; then `other`",
    "stage": "`encode`, `denoise`, `decode`, `media` (the file), `store`",
    "state": "`queued`, `running`",
    "status": "of the answer",
    "tenant_class": "`tenants.NAME.metrics_class` of the settings; `default` where it says none",
    "verdict": "`allowed`, `refused`, `absent` (none in time)",
    "when": "`before` (the request), `after` (the output)",
}
"""Origin of each label's values: no client chooses one."""

TEXT = """# Metrics

Written by `make reference` from the code. Prometheus' text format on `/metrics` of each front end (port 8000) and, where `pools.NAME.metrics_port` is set, of each pool. Every value that can be known before something happens is there from the start, with 0. A pool of several hosts tells of its model by its first process; the others tell of their devices' memory alone. Both have the `process_` metrics of the Prometheus client, pools its `python_` ones, too.

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
- **Deadlines.** Met: the job succeeded before its deadline. Missed: it expired, failed, or succeeded too late. Canceled jobs count as neither.
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
            if name.startswith(PREFIX):
                labels: Any = getattr(collector, "_labelnames", ())
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
