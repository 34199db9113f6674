"""A request gives the same bytes in a running system of every family: alone and in a batch, in a
request of several images, after its pool is killed, and after a fresh start."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from service.client import Client
from tests import coarse
from tests.e2e import served
from tests.e2e.system import System, until
from tests.families.suite import SUITE

SLOTS = 4
END_S = 300
"""Maximum time of one job among all of them on a busy machine."""
LONG = 150
"""Enough steps to interrupt a job midway."""

Body = Mapping[str, Any]


@pytest.fixture(scope="module")
def each(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint of each family with the defaults of a small request."""
    root = tmp_path_factory.mktemp("checkpoints")
    return {name: served.with_defaults(root / name, name) for name in SUITE}


def started(state: Path, folders: Mapping[str, Path], dtype: str) -> System:
    models = {
        name: {"source": str(folder), "dtype": dtype} | served.preset(name)
        for name, folder in folders.items()
    }
    pools = {name: {"model": name, "slots": SLOTS} for name in folders}
    variables = {
        "ATELIER_MODELS": json.dumps(models),
        "ATELIER_POOLS": json.dumps(pools),
        "ATELIER_QUEUE__LEASE_S": "3",
        "ATELIER_QUEUE__REAP_EVERY_S": "0.5",
    }
    return System(state, XLA_FLAGS=coarse.FLAGS, **variables)


def bodies(name: str) -> list[Body]:
    """Nine varied requests; the last repeats the seeds of the first four."""
    entry = SUITE[name]
    format_ = {"output": {"format": "gif"}} if entry.makes_video else {}
    quality = "cached" if entry.step_caches else "exact"
    base = {"model": name, "prompt": "a red circle", "num_inference_steps": 6, **format_}
    return [
        *({**base, "seed": seed} for seed in range(4)),
        {**base, "seed": 4, "num_inference_steps": 9, "prompt": "a star"},
        {**base, "seed": 5, entry.scale: 2.0},
        {**base, "seed": 6, "quality": quality, "num_inference_steps": 12},
        {**base, "seed": 7, "quality": quality, "num_inference_steps": LONG},
        {**base, "num_images": 4, "seed": 0},
    ]


def digests(client: Client, bodies_: Sequence[Body]) -> list[list[str]]:
    """Digests of each request's files; all requests are submitted at once."""
    return ended(client, [str(client.submit(body)["id"]) for body in bodies_])


def ended(client: Client, jobs: Sequence[str]) -> list[list[str]]:
    return [digests_of(client, job) for job in jobs]


def digests_of(client: Client, job_id: str) -> list[str]:
    """Poll a job until it succeeds and return its digests; `follow` would cover only one job."""
    client.job_id = job_id
    until(lambda: client.job()["state"] not in ("queued", "running"), "its end", END_S)
    job = client.job()
    assert job["state"] == "succeeded", job
    return [output["sha256"] for output in job["outputs"]]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.timeout(1800)  # eight pools and one again, on a machine that does little for us
def test_the_same_bytes_of_every_family(each: dict[str, Path], tmp_path: Path, dtype: str) -> None:
    running = started(tmp_path / "first", each, dtype)
    try:
        with Client(running.url) as client:
            flux = the_same(client, list(each))["flux"]
            assert after_a_kill(running, client, bodies("flux")) == flux
    finally:
        running.close()
    again = started(tmp_path / "second", {"flux": each["flux"]}, dtype)
    try:
        with Client(again.url) as client:
            assert digests(client, bodies("flux")) == flux
    finally:
        again.close()


@pytest.mark.timeout(900)  # seconds, for the system's start
def test_the_same_bytes_of_flux_in_bfloat16(system: System) -> None:
    """The bytes are the same in a batch with other jobs and alone."""
    with Client(system.url) as client:
        the_same(client, [served.EXACT])


def the_same(client: Client, names: Sequence[str]) -> dict[str, list[list[str]]]:
    """Check the models; return the digests of each model's bodies."""
    requests = {name: bodies(name) for name in names}
    alone = {
        name: [digests(client, [request])[0] for request in model_requests]
        for name, model_requests in requests.items()
    }
    together = digests(client, [*chain.from_iterable(requests.values())])
    assert together == [*chain.from_iterable(alone.values())]
    for name, outputs in alone.items():
        assert outputs[-1] == [request for [request] in outputs[:4]], name
        assert model(client, name)["batching"] == {"mode": "exact", "levels": None}
        assert continued(client, requests[name][-1], 2) == outputs[2], name
    return alone


def continued(client: Client, body: Body, number: int) -> list[str]:
    """Digests of an image that was paused midway and finished by another job."""
    paused = str(client.submit({**body, "stop_at_step": 3})["id"])
    until(lambda: client.job()["state"] not in ("queued", "running"), "its pause", END_S)
    assert client.job()["state"] == "paused", client.job()
    assert client.job()["usage"]["steps"] == 3 * body["num_images"]
    job = client.continue_job(paused, {"images": [number]})
    assert job["progress"] == {"step": 3, "steps": body["num_inference_steps"]}
    return digests_of(client, str(job["id"]))


def model(client: Client, name: str) -> Any:
    return client._call("GET", f"/v1/models/{name}").json()


def after_a_kill(running: System, client: Client, requests: Sequence[Body]) -> list[list[str]]:
    """Digests of the first family's requests, whose pool is killed during the long one."""
    jobs = [str(client.submit(body)["id"]) for body in reversed(requests)]
    client.job_id = jobs[1]

    def is_midway() -> bool:
        return bool(client.job()["progress"]["step"] > LONG // 4)

    until(is_midway, "the long one's steps")
    os.kill(running.child("--pool flux "), signal.SIGKILL)
    return ended(client, jobs)[::-1]
