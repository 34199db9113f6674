"""Where one request's time goes from HTTP to its file, by spans. No test: run it where it is quiet.

    python -m tests.bench.service [--model NAME=FOLDER …] [--requests 30]

Starts `atelier up` (the demo models unless told otherwise) with a collector of traces, asks for one
image or video after the other, of all models in turn, and prints for each model the median and the
quartiles of every stage, and of what lies between the stages.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import quantiles
from typing import Any

import httpx

from deploy.cli.options import count
from tests.collector import Collector, Told, collecting
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
        endpoint = {"ATELIER_TRACING__ENDPOINT": collector.url}
        system = System(Path(state), "--dtype", "float32", *chosen, **endpoint)
        try:
            with httpx.Client(base_url=system.url, timeout=60, trust_env=False) as http:
                measure(http, collector, options.requests)
        finally:
            system.close()


def measure(http: httpx.Client, collector: Collector, requests: int) -> None:
    models = [model["name"] for model in http.get("/v1/models").json()["data"]]
    rows: dict[str, list[dict[str, float]]] = {model: [] for model in models}
    for number in range(WARM_UP + requests):
        for model, found in rows.items():
            stages = one(http, collector, model, number)
            if number >= WARM_UP:
                found.append(stages)
    for model, found in rows.items():
        print(f"\n{model}, ms: median (quartiles), of {len(found)} requests one after the other")
        for line in table(found):
            print(line)


def one(http: httpx.Client, collector: Collector, model: str, seed: int) -> dict[str, float]:
    """Seconds of every stage of one request."""
    sent = time.time()
    answer = http.post(
        "/v1/generate",
        json={"model": model, "prompt": PROMPT, "seed": seed},
        headers={"Prefer": "wait=60"},
    )
    answered = time.time()
    answer.raise_for_status()
    job = answer.json()

    def spans() -> dict[str, Told]:
        return {span.name: span for span in collector.of_job(job["id"])}

    until(lambda: {LAST, "attempt", "queue", "admission"} <= set(spans()), "all of its spans")
    return dict(stages(spans(), sent, answered, job["usage"]["device_seconds"]))


def stages(
    spans: dict[str, Told], sent: float, answered: float, device_s: float
) -> Iterator[tuple[str, float]]:
    """In their order; what lies between them has a name of its own. Files are encoded and stored by
    turns: the span of the first goes on to the end of the last."""
    yield "before admission", spans["admission"].start - sent
    yield "admission", spans["admission"].end - spans["admission"].start
    yield "until claimed", spans["queue"].end - spans["admission"].end
    yield "claim's answer", spans["attempt"].start - spans["queue"].end
    at = spans["attempt"].start
    for name in ("prepare", "compile", "encode", "denoise", "decode", "media"):
        yield f"before {name}", spans[name].start - at
        yield name, spans[name].end - spans[name].start
        at = spans[name].end
    yield "(of media: store)", spans["store"].end - spans["store"].start
    yield f"before {LAST}", spans[LAST].start - at
    yield LAST, spans[LAST].end - spans[LAST].start
    yield "news of the end", answered - spans[LAST].end
    yield "whole", answered - sent
    yield "device (by usage)", device_s
    yield "added", answered - sent - device_s


def table(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    for name in found[0]:
        low, middle, high = quantiles([1000 * row[name] for row in found], n=4)
        yield f"  {name:18} {middle:8.2f} ({low:.2f} to {high:.2f})"


if __name__ == "__main__":
    main()
