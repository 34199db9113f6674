"""The same request gives the same bytes, by a running system of every family: alone and beside
others, of several images or one, after its pool was killed, and after a start from nothing."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from service.client import Client
from tests import coarse
from tests.e2e.system import System, until
from tests.families.suite import SUITE

SLOTS = 4
END_S = 300
"""Of one job among all of them, on a machine that does little for us."""
LONG = 150
"""Steps: enough to be met in the middle."""
CACHED = {"step_cache": {"kind": "first-block", "threshold": 0.2}}

Body = Mapping[str, Any]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint of each family, whose small requests are its defaults."""
    root = tmp_path_factory.mktemp("checkpoints")
    return {name: made(root / name, name) for name in SUITE}


def made(folder: Path, name: str) -> Path:
    request = SUITE[name].least_request
    SUITE[name].least(folder)
    given = {field: request[field] for field in request if field not in ("seed", "num_images")}
    (folder / "atelier.json").write_text(json.dumps({"defaults": given}))
    return folder


def started(state: Path, folders: Mapping[str, Path], dtype: str) -> System:
    models = {
        name: {"source": str(folder), "dtype": dtype} | preset(name)
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


def preset(name: str) -> dict[str, Any]:
    return {"quality": {"cached": CACHED}} if SUITE[name].step_caches else {}


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
def test_the_same_bytes(folders: dict[str, Path], tmp_path: Path, dtype: str) -> None:
    asked = [body for name in folders for body in bodies(name)]
    running = started(tmp_path / "first", folders, dtype)
    try:
        with Client(running.url) as client:
            alone = [digests(client, [body])[0] for body in asked]
            assert digests(client, asked) == alone
            for name, found in zip(folders, of_each(alone, len(folders)), strict=True):
                assert found[-1] == [one for [one] in found[:4]], name
                assert model(client, name)["batching"] == {"mode": "exact", "levels": None}
                assert continued(client, bodies(name)[-1], 2) == found[2], name
            assert (
                after_a_kill(running, client, asked[: len(bodies("flux"))])
                == of_each(alone, len(folders))[0]
            )
    finally:
        running.close()
    again = started(tmp_path / "second", {"flux": folders["flux"]}, dtype)
    try:
        with Client(again.url) as client:
            assert digests(client, bodies("flux")) == of_each(alone, len(folders))[0]
    finally:
        again.close()


def of_each(found: Sequence[list[str]], families: int) -> list[list[list[str]]]:
    each = len(found) // families
    return [list(found[first : first + each]) for first in range(0, len(found), each)]


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
