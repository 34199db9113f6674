"""Time of a request from HTTP to its file, by spans. Not a test: run it on a quiet machine.

    python -m lab.bench.service [--model NAME=FOLDER …] [--requests 30]

Starts `atelier up` (by default with the demo models) and a collector of traces, and requests
outputs in sequence, alternating between models. Prints the median and quartiles of every stage and
of the gaps between stages, by model.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import quantiles
from typing import Any

import httpx

from deploy.cli.options import count
from tests.collector import Collector, Span, collecting
from tests.conftest import COMPILED
from tests.e2e.system import System, until

PROMPT = "a red circle on a blue background"
WARM_UP = 3
LAST = "finish"
"""The last stage of an attempt."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", action="append", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--requests", type=count, default=30)
    options = parser.parse_args()
    chosen = [word for model in options.model for word in ("--model", model)]
    with tempfile.TemporaryDirectory() as state, collecting() as collector:
        os.environ.setdefault(COMPILED, f"{state}/compiled")
        endpoint = {"ATELIER_TRACING__ENDPOINT": collector.url}
        system = System(Path(state) / "state", "--dtype", "float32", *chosen, **endpoint)
        try:
            with httpx.Client(base_url=system.url, timeout=60, trust_env=False) as http:
                measure(http, collector, options.requests)
        finally:
            system.close()


def measure(http: httpx.Client, collector: Collector, requests: int) -> None:
    models = [model["name"] for model in http.get("/v1/models").json()["data"]]
    rows: dict[str, list[dict[str, float]]] = {model: [] for model in models}
    for number in range(WARM_UP + requests):
        for model, samples in rows.items():
            stages = one(http, collector, model, number)
            if number >= WARM_UP:
                samples.append(stages)
    for model, samples in rows.items():
        print(f"\n{model}, ms: median (quartiles), of {len(samples)} requests one after the other")
        for line in table(samples):
            print(line)


def one(http: httpx.Client, collector: Collector, model: str, seed: int) -> dict[str, float]:
    """Request one output; returns the seconds of every stage."""
    sent_at = time.time()
    response = http.post(
        "/v1/generate",
        json={"model": model, "prompt": PROMPT, "seed": seed},
        headers={"Prefer": "wait=60"},
    )
    received = time.time()
    response.raise_for_status()
    job = response.json()

    def spans() -> dict[str, Span]:
        return {span.name: span for span in collector.of_job(job["id"])}

    until(lambda: {LAST, "attempt", "queue", "admission"} <= set(spans()), "all of its spans")
    return dict(stages(spans(), sent_at, received, job["usage"]["device_seconds"]))


def stages(
    spans: dict[str, Span], sent: float, answered: float, device_s: float
) -> Iterator[tuple[str, float]]:
    """Yield stages in order, with named gaps between them. Encoding and storing of files alternate:
    the first file's span extends to the end of the last."""
    yield "before admission", spans["admission"].start - sent
    yield "admission", spans["admission"].end - spans["admission"].start
    yield "until claimed", spans["queue"].end - spans["admission"].end
    yield "claim's answer", spans["attempt"].start - spans["queue"].end
    previous_end = spans["attempt"].start
    for name in ("prepare", "compile", "encode", "denoise", "decode", "media"):
        yield f"before {name}", spans[name].start - previous_end
        yield name, spans[name].end - spans[name].start
        previous_end = spans[name].end
    yield "(of media: store)", spans["store"].end - spans["store"].start
    yield f"before {LAST}", spans[LAST].start - previous_end
    yield LAST, spans[LAST].end - spans[LAST].start
    yield "news of the end", answered - spans[LAST].end
    yield "whole", answered - sent
    yield "device (by usage)", device_s
    yield "added", answered - sent - device_s


def table(samples: Sequence[dict[str, Any]]) -> Iterator[str]:
    for name in samples[0]:
        low, middle, high = quantiles([1000 * row[name] for row in samples], n=4)
        yield f"  {name:18} {middle:8.2f} ({low:.2f} to {high:.2f})"


if __name__ == "__main__":
    main()
