"""A running system verifies outputs by generating them again, in a batch and after a fresh
start."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import product
from threading import Event
from typing import Any

import pytest

from deploy.local.supervisor import DEMO_FOLDER
from service.client import Client
from tests import coarse
from tests.e2e.conftest import Start
from tests.e2e.system import System

MODELS = {"flux-demo": "flux", "sdxl-demo": "sdxl"}
FILES: tuple[dict[str, Any], ...] = (
    {"format": "png"},
    {"format": "webp", "quality": 100},
    {"format": "webp", "quality": 70},
    {"format": "jpeg", "quality": 95},
    {"format": "jpeg", "quality": 60},
)
PICTURES: tuple[dict[str, Any], ...] = (
    {"prompt": "a red circle", "num_inference_steps": 3},
    {"prompt": "a blue star", "num_inference_steps": 5},
    {"prompt": "a green cross on a white background", "num_inference_steps": 6},
    {"prompt": "a purple triangle", "num_inference_steps": 4},
    {"prompt": "two yellow squares", "num_inference_steps": 9},
)
REQUESTS = [
    {**picture, "output": file, "model": model}
    for file, picture, model in product(FILES, PICTURES, MODELS)
]
"""Fifty requests; neighbors differ in the model."""
AT_ONCE = 8
LONG = int(os.environ.get("VERIFICATIONS", 1000))
"""Verifications of the long test, `make verifications`."""


def drawn(system: System, **body: object) -> tuple[str, list[bytes]]:
    """Generate with `tiny`; returns the job's id and output files."""
    with Client(system.url) as client:
        client.submit({"model": "tiny", "prompt": "a star"} | body)
        list(client.follow())
        job = client.job()
        assert job["state"] == "succeeded"
        return job["id"], [client.output(output["url"]) for output in job["outputs"]]


def test_verify_regenerates_outputs(start: Start) -> None:
    system = start()
    job, files = drawn(system, num_images=4, seed=3)
    with Client(system.url) as client, ThreadPoolExecutor(4) as threads:
        verify = partial(client.verify, content_type="image/png")
        assert {verdict["verdict"] for verdict in threads.map(verify, files)} == {"identical"}
        reference = json.dumps({"job": job, "output": 2}).encode()
        before = client.verify(reference, "application/json")
        assert before["made_by"] == before["drawn_by"] is not None
        assert before["sha256"]["file"] == before["sha256"]["drawn"]
    system.close()
    with Client(start().url) as client:
        after = client.verify(files[1], "image/png")
        assert (after["verdict"], after["drawn_by"]) == ("identical", before["made_by"])


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """The demo models of Flux and SDXL, with batches of up to four images."""
    models = [f"--model={name}={DEMO_FOLDER / folder}" for name, folder in MODELS.items()]
    pools = json.dumps({name: {"model": name, "slots": 4} for name in MODELS})
    state = tmp_path_factory.mktemp("demos")
    running = System(state, *models, ATELIER_POOLS=pools, XLA_FLAGS=coarse.FLAGS)
    yield running
    running.close()


@contextmanager
def under_load(system: System) -> Iterator[None]:
    """Keep both models busy with jobs of several images, which join and leave the batches."""
    ended = Event()

    def load(model: str) -> None:
        seed = 0
        while not ended.is_set():
            seed += 3
            fields = {"prompt": "a house", "num_images": 3, "num_inference_steps": 2 + seed % 8}
            drawn(system, model=model, seed=seed, **fields)

    with ThreadPoolExecutor(len(MODELS)) as threads:
        loads = [threads.submit(load, model) for model in MODELS]
        try:
            yield
        finally:
            ended.set()
        for running in loads:
            running.result()


def verdict_on(system: System, request: dict[str, Any], seed: int) -> str:
    """Generate an image, and verify its file or, for every other seed, the job's output."""
    job, (file,) = drawn(system, **request, seed=seed)
    reference = json.dumps({"job": job}).encode()
    with Client(system.url) as client:
        if seed % 2:
            verification = client.verify(reference, "application/json")
        else:
            verification = client.verify(file, f"image/{request['output']['format']}")
    return str(verification["verdict"])


@pytest.mark.timeout(7200)  # seconds; 2,000 images and the load's on a busy machine
@pytest.mark.parametrize("count", [pytest.param(20, id="few"), pytest.param(LONG, id="many")])
def test_verifications_under_load_are_identical(demos: System, count: int) -> None:
    """Fifty requests with up to twenty seeds each, in all formats of images."""
    order = [(request, seed) for seed in range(count // len(REQUESTS) + 1) for request in REQUESTS]
    verify = partial(verdict_on, demos)
    with under_load(demos), ThreadPoolExecutor(AT_ONCE) as threads:
        began = time.monotonic()
        verdicts = Counter(threads.map(verify, *zip(*order[:count], strict=True)))
    print(f"{verdicts['identical']} of {count} identical, {time.monotonic() - began:.0f} s")
    assert verdicts == {"identical": count}
