"""Adapters in a running system of every family: from settings, from a tenant, and of a model. The
bytes are the same alone, in a batch, and after a pool is killed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from service.client import ApiError, Client
from tests import coarse
from tests.e2e import served
from tests.e2e.conftest import Files
from tests.e2e.system import System, until
from tests.e2e.test_reproducibility import LONG, SLOTS, digests, ended
from tests.families.suite import SUITE

pytestmark = pytest.mark.processes

Body = Mapping[str, Any]


@dataclass(frozen=True)
class Families:
    """A system with these adapters."""

    system: System
    files: Mapping[str, Path]
    names: Sequence[str]
    pool: str
    """Part of the command line of Flux's pool."""


@pytest.fixture
def flux(system: System, lora_files: Files) -> Families:
    return Families(system, lora_files, ["flux"], "worker")


@pytest.fixture
def every(tmp_path: Path) -> Iterator[Families]:
    folders = {name: served.with_defaults(tmp_path / name, name) for name in SUITE}
    files = served.adapters(folders, tmp_path)
    models: dict[str, Any] = {
        name: {"source": str(folder), "dtype": "float32", "lora_pages": served.PAGES}
        for name, folder in folders.items()
    }
    running = System(
        tmp_path / "state",
        XLA_FLAGS=coarse.FLAGS,
        ATELIER_MODELS=json.dumps(models | served.with_adapter(files)),
        ATELIER_POOLS=json.dumps({name: {"model": name, "slots": SLOTS} for name in SUITE}),
        ATELIER_LORAS=json.dumps(served.named_adapters(files)),
        ATELIER_QUEUE__LEASE_S="3",
        ATELIER_QUEUE__REAP_EVERY_S="0.5",
    )
    try:
        yield Families(running, files, list(SUITE), "--pool flux ")
    finally:
        running.close()


def body(model: str, seed: int, *loras: tuple[str, Any], **fields: Any) -> dict[str, Any]:
    format_ = (
        {"output": {"format": "gif"}} if model != served.FAST and SUITE[model].makes_video else {}
    )
    base = {
        "model": model,
        "prompt": "a red circle",
        "num_inference_steps": served.STEPS,
        "seed": seed,
    }
    named = [{"name": name, "scale": scale} for name, scale in loras]
    return {**base, **format_, **fields} | ({"loras": named} if named else {})


@pytest.mark.timeout(900)  # a pool of each family, on a machine that does little for us
def test_adapters_of_every_family_have_reproducible_bytes(every: Families) -> None:
    check(every)


@pytest.mark.timeout(900)  # seconds: the system's start
def test_flux_adapters_have_reproducible_bytes(flux: Families) -> None:
    check(flux)


def check(families: Families) -> None:
    files = families.files
    with Client(families.system.url) as client:
        uploaded = client.upload_lora({"name": "mine", "model": "flux"}, file=files["flux-c"])
        assert (uploaded["name"], uploaded["ready"], uploaded["rank"]) == ("mine", True, 16)
        listed = {lora["name"]: lora for lora in client.loras()}
        assert listed.keys() == {*files} - {"flux-c"} | {"mine"}
        last = f"{families.names[-1]}-a"
        assert listed[last]["trigger"] == f"word of {last}"
        schedule = [{"from": 0, "to": 0.5, "scale": 1.0}]
        requests: list[Body] = [
            body("flux", 1),
            body("flux", 1, ("flux-a", 1.0)),
            body("flux", 1, ("flux-b", 1.0)),
            body("flux", 1, ("flux-b", 0.5)),
            body("flux", 1, ("mine", -0.7)),
            body("flux", 1, ("flux-a", 1.0), ("flux-b", 0.5)),
            body("flux", 1, ("mine", schedule)),
            body("flux", 1, ("flux-a", 1.0), num_inference_steps=LONG),
            *(
                body(name, 1, *loras)
                for name in families.names
                if name != "flux"
                for loras in ([], [(f"{name}-a", 0.6)])
            ),
        ]
        alone = [digests(client, [request])[0] for request in requests]
        assert len({files_[0] for files_ in alone}) == len(requests), "each adapter shows"
        assert digests(client, requests) == alone, "in company"
        fast = body(served.FAST, 1)
        del fast["num_inference_steps"]
        # The files' metadata names another model.
        assert pixels(client, fast) == pixels(client, requests[3]), "a model with an adapter"
        assert pixels(client, body(served.FAST, 1, ("flux-a", 1.0))) == pixels(
            client, body("flux", 1, ("flux-b", 0.5), ("flux-a", 1.0))
        )
        assert after_a_kill(families, client, requests[:8]) == alone[:8]
        client.delete_lora("mine")
        with pytest.raises(ApiError, match="mine"):
            client.submit(requests[4])


def pixels(client: Client, request: Body) -> list[str]:
    """Pixel digests of a request's outputs, independent of the files' metadata."""
    digests(client, [request])
    return [output["pixels_sha256"] for output in client.job()["outputs"]]


def after_a_kill(families: Families, client: Client, requests: list[Body]) -> list[list[str]]:
    """Digests of Flux's requests, whose pool is killed during the last, long one."""
    jobs = [str(client.submit(request)["id"]) for request in reversed(requests)]
    client.job_id = jobs[0]
    until(lambda: client.job()["progress"]["step"] > LONG // 4, "the long one's steps")
    os.kill(families.system.child(families.pool), signal.SIGKILL)
    return ended(client, jobs)[::-1]
