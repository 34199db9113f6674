"""Adapters by a running system of every family: the settings', a tenant's, a model's own; with the
same bytes alone, in company, and after a pool was killed in the midst."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from models import registry
from models.loading.sources import SHAPES
from service.client import ApiError, Client
from tests import coarse
from tests.e2e.system import System, until
from tests.e2e.test_exact import LONG, SLOTS, digests, ended, made
from tests.families.adapters import Loras
from tests.families.suite import SUITE

pytestmark = pytest.mark.processes

PAGES = 4
FAST = "flux-fast"
STEPS = 4

Body = Mapping[str, Any]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("loras")


@pytest.fixture(scope="module")
def files(root: Path) -> dict[str, Path]:
    """Adapters by name, three of Flux and one of each other family."""
    return {
        name: path
        for family in SUITE
        for name, path in adapters(root, family, ["a", "b", "c"] if family == "flux" else ["a"])
    }


def adapters(root: Path, family: str, names: list[str]) -> Iterator[tuple[str, Path]]:
    folder = made(root / family, family)
    loras = Loras(registry.load(family, str(folder), "float32", {}, reader=SHAPES), root)
    for number, name in enumerate(names):
        lora = loras.make(f"{family}-{name}", rank=(4, 20, 16)[number])
        yield lora.name, Path(loras.paths[lora.digest])


@pytest.fixture(scope="module")
def system(root: Path, files: dict[str, Path]) -> Iterator[System]:
    models: dict[str, Any] = {
        name: {"source": str(root / name), "dtype": "float32", "lora_pages": PAGES}
        for name in SUITE
    }
    models[FAST] = {
        "base": "flux",
        "lora": str(files["flux-b"]),
        "lora_scale": 0.5,
        "defaults": {"num_inference_steps": STEPS},
    }
    loras = {
        name: {"source": str(path), "model": name.partition("-")[0], "trigger": f"word of {name}"}
        for name, path in files.items()
        if name != "flux-c"
    }
    running = System(
        root / "state",
        XLA_FLAGS=coarse.FLAGS,
        ATELIER_MODELS=json.dumps(models),
        ATELIER_POOLS=json.dumps({name: {"model": name, "slots": SLOTS} for name in SUITE}),
        ATELIER_LORAS=json.dumps(loras),
        ATELIER_QUEUE__LEASE_S="3",
        ATELIER_QUEUE__REAP_EVERY_S="0.5",
    )
    try:
        assert running.url
        yield running
    finally:
        running.close()


def body(model: str, seed: int, *loras: tuple[str, Any], **fields: Any) -> dict[str, Any]:
    clip = {"output": {"format": "gif"}} if model != FAST and SUITE[model].makes_video else {}
    base = {"model": model, "prompt": "a red circle", "num_inference_steps": STEPS, "seed": seed}
    named = [{"name": name, "scale": scale} for name, scale in loras]
    return {**base, **clip, **fields} | ({"loras": named} if named else {})


@pytest.mark.timeout(900)  # a pool of each family, on a machine that does little for us
def test_adapters_of_all_kinds_draw_the_same_bytes_whatever_happens(
    system: System, files: dict[str, Path]
) -> None:
    with Client(system.url) as client:
        uploaded = client.upload_lora({"name": "mine", "model": "flux"}, file=files["flux-c"])
        assert (uploaded["name"], uploaded["ready"], uploaded["rank"]) == ("mine", True, 16)
        listed = {lora["name"]: lora for lora in client.loras()}
        assert listed.keys() == {*files} - {"flux-c"} | {"mine"}
        assert listed["wan-a"]["trigger"] == "word of wan-a"
        some = [{"from": 0, "to": 0.5, "scale": 1.0}]
        asked: list[Body] = [
            body("flux", 1),
            body("flux", 1, ("flux-a", 1.0)),
            body("flux", 1, ("flux-b", 1.0)),
            body("flux", 1, ("flux-b", 0.5)),
            body("flux", 1, ("mine", -0.7)),
            body("flux", 1, ("flux-a", 1.0), ("flux-b", 0.5)),
            body("flux", 1, ("mine", some)),
            body("flux", 1, ("flux-a", 1.0), num_inference_steps=LONG),
            *(
                body(name, 1, *loras)
                for name in SUITE
                if name != "flux"
                for loras in ([], [(f"{name}-a", 0.6)])
            ),
        ]
        alone = [digests(client, [one])[0] for one in asked]
        assert len({found[0] for found in alone}) == len(asked), "each adapter shows"
        assert digests(client, asked) == alone, "in company"
        fast = body(FAST, 1)
        del fast["num_inference_steps"]
        # Their files name another model.
        assert pixels(client, fast) == pixels(client, asked[3]), "a model with an adapter"
        assert pixels(client, body(FAST, 1, ("flux-a", 1.0))) == pixels(
            client, body("flux", 1, ("flux-b", 0.5), ("flux-a", 1.0))
        )
        assert after_a_kill(system, client, asked[:8]) == alone[:8]
        client.delete_lora("mine")
        with pytest.raises(ApiError, match="mine"):
            client.submit(asked[4])


def pixels(client: Client, asked: Body) -> list[str]:
    """Digests of what a request draws, whatever its files say of it."""
    digests(client, [asked])
    return [output["pixels_sha256"] for output in client.job()["outputs"]]


def after_a_kill(system: System, client: Client, asked: list[Body]) -> list[list[str]]:
    """Of Flux's, where their pool is killed in the midst of the last, long one."""
    jobs = [str(client.submit(one)["id"]) for one in reversed(asked)]
    client.job_id = jobs[0]
    until(lambda: client.job()["progress"]["step"] > LONG // 4, "the long one's steps")
    os.kill(system.child("--pool flux "), signal.SIGKILL)
    return ended(client, jobs)[::-1]
