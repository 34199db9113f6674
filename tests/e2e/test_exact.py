"""The same request gives the same bytes, by a running system of every family: alone and beside
others, of several images or one, after its pool was killed, and after a start from nothing."""

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
"""Of one job among all of them, on a machine that does little for us."""
LONG = 150
"""Steps: enough to be met in the middle."""

Body = Mapping[str, Any]


@pytest.fixture(scope="module")
def each(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint of each family, whose small requests are its defaults."""
    root = tmp_path_factory.mktemp("checkpoints")
    return {name: served.with_defaults(root / name, name) for name in SUITE}


def started(state: Path, folders: Mapping[str, Path], dtype: str) -> System:
    models = {
        name: {"source": str(folder), "dtype": dtype} | served.preset(name)
        for name, folder in folders.items()
    }
    pools = {name: {"model": name, "slots": SLOTS} for name in folders}
    given = {
        "ATELIER_MODELS": json.dumps(models),
        "ATELIER_POOLS": json.dumps(pools),
        "ATELIER_QUEUE__LEASE_S": "3",
        "ATELIER_QUEUE__REAP_EVERY_S": "0.5",
    }
    return System(state, XLA_FLAGS=coarse.FLAGS, **given)


def bodies(name: str) -> list[Body]:
    """Nine mixed ones; the last is the seeds of three others."""
    entry = SUITE[name]
    clip = {"output": {"format": "gif"}} if entry.makes_video else {}
    quality = "cached" if entry.step_caches else "exact"
    base = {"model": name, "prompt": "a red circle", "num_inference_steps": 6, **clip}
    return [
        *({**base, "seed": seed} for seed in range(4)),
        {**base, "seed": 4, "num_inference_steps": 9, "prompt": "a star"},
        {**base, "seed": 5, entry.scale: 2.0},
        {**base, "seed": 6, "quality": quality, "num_inference_steps": 12},
        {**base, "seed": 7, "quality": quality, "num_inference_steps": LONG},
        {**base, "num_images": 4, "seed": 0},
    ]


def digests(client: Client, asked: Sequence[Body]) -> list[list[str]]:
    """Of the files of each, all of them asked for at once."""
    return ended(client, [str(client.submit(body)["id"]) for body in asked])


def ended(client: Client, jobs: Sequence[str]) -> list[list[str]]:
    return [digests_of(client, job) for job in jobs]


def digests_of(client: Client, job_id: str) -> list[str]:
    """When it has ended. A client follows the events of one job alone: this one asks."""
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


@pytest.mark.timeout(900)  # seconds: the system's start
def test_the_same_bytes_of_flux_in_bfloat16(system: System) -> None:
    """Beside other jobs and alone; no pool ends."""
    with Client(system.url) as client:
        the_same(client, [served.EXACT])


def the_same(client: Client, names: Sequence[str]) -> dict[str, list[list[str]]]:
    """Check the models; return the digests of the bodies of each."""
    asked = {name: bodies(name) for name in names}
    alone = {name: [digests(client, [one])[0] for one in own] for name, own in asked.items()}
    beside = digests(client, [*chain.from_iterable(asked.values())])
    assert beside == [*chain.from_iterable(alone.values())]
    for name, found in alone.items():
        assert found[-1] == [one for [one] in found[:4]], name
        assert model(client, name)["batching"] == {"mode": "exact", "levels": None}
        assert continued(client, asked[name][-1], 2) == found[2], name
    return alone


def continued(client: Client, body: Body, number: int) -> list[str]:
    """Digests of an image that was stopped half-way, and finished by a job of its own."""
    paused = str(client.submit({**body, "stop_at_step": 3})["id"])
    until(lambda: client.job()["state"] not in ("queued", "running"), "its pause", END_S)
    assert client.job()["state"] == "paused", client.job()
    assert client.job()["usage"]["steps"] == 3 * body["num_images"]
    job = client.continue_job(paused, {"images": [number]})
    assert job["progress"] == {"step": 3, "steps": body["num_inference_steps"]}
    return digests_of(client, str(job["id"]))


def model(client: Client, name: str) -> Any:
    return client._call("GET", f"/v1/models/{name}").json()


def after_a_kill(running: System, client: Client, asked: Sequence[Body]) -> list[list[str]]:
    """Of the first family's, where their pool is killed in the midst of the long one."""
    jobs = [str(client.submit(body)["id"]) for body in reversed(asked)]
    client.job_id = jobs[1]

    def is_midway() -> bool:
        return bool(client.job()["progress"]["step"] > LONG // 4)

    until(is_midway, "the long one's steps")
    os.kill(running.child("--pool flux "), signal.SIGKILL)
    return ended(client, jobs)[::-1]
