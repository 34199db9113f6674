"""`atelier compile` in one process; workers in others, which trace nothing that it has built."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.settings.queue import QueueSettings
from tests import coarse
from tests.service.jobs import object_stores
from tests.test_arrows import ROOT
from tests.workers.flux import REQUEST, tuned
from tests.workers.jobs import ended, pixels
from tests.workers.pool.test_process import toml
from tests.workers.pool.test_several import put, queue_has
from tests.workers.pool_process import MAIN, PoolProcess

MODELS = ("flux", "tuned")
NEVER = """
def never(*args, **kwargs):
    raise AssertionError("traced")

from jax.stages import Lowered
from workers.loading import model
from workers.programs.tracer import Tracer
model.sketch = Lowered.compile = never
for name in ("encode", "conditions", "step", "decode", "preview"):
    setattr(Tracer, name, never)
"""
"""All that is traced or compiled for a model, and not for a helper of a line."""
SIZE = {name: REQUEST[name] for name in ("width", "height", "max_sequence_length")}


def compiled(
    config: Path, *arguments: str, flags: str = coarse.FLAGS
) -> subprocess.CompletedProcess[str]:
    """Run the command.

    Args:
        flags: for XLA, of CPUs, which libtpu does not know.
    """
    return subprocess.run(
        [sys.executable, "atelier.py", "compile", "--config", str(config), *arguments],
        cwd=ROOT,
        env={**os.environ, "XLA_FLAGS": flags},
        capture_output=True,
        text=True,
    )


def written(folder: Path, url: str, models: dict[str, Path], **more: object) -> Path:
    """Write settings of a pool with state of its own."""
    folder.mkdir()
    sections: dict[str, dict[str, object]] = {
        "": {"state_dir": str(folder / "state"), **more},
        "redis": {"url": url},
        "queue": {"lease_s": 3},
        "pools.flux": {"model": "flux", "also": ["tuned"], "slots": 2},
        **{
            f"models.{name}": {"source": str(place), "dtype": "float32", "defaults": SIZE}
            for name, place in models.items()
        },
    }
    file = folder / "atelier.toml"
    file.write_text("".join(toml(name, values) for name, values in sections.items()))
    return file


def bare(folder: Path, to: Path) -> Path:
    """Copy a checkpoint without its weights."""
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix != ".safetensors":
            place = to / path.relative_to(folder)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(path.read_bytes())
    return to


@pytest.fixture(scope="module")
def folders(flux_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tuned") / "tuned"
    return dict(zip(MODELS, (flux_folder, tuned(flux_folder, folder)), strict=True))


async def drawn(config: Path, main: str, redis_url: str) -> list[np.ndarray]:
    """One image of each model by a pool that is started and ended."""
    process = PoolProcess(config, config.with_suffix(".log"), main=main)
    queue = await Queue.connect(redis_url, QueueSettings(lease_s=3))
    store = Store(str(config.parent / "state" / "outputs"))
    try:
        for model in MODELS:
            await queue_has(queue, model, process)
        jobs = [await ended(queue, await put(queue, model, 7)) for model in MODELS]
        images = [(await pixels(store, job))[0] for job in jobs]
        said = process.said
    finally:
        process.end()
        await queue.close()
    assert "executables cannot be" not in said and "is not used" not in said, said
    return images


@pytest.mark.timeout(900)  # two builds and two pools, minutes on two busy cores
async def test_a_pool_draws_the_same_by_what_was_built_without_its_weights(
    folders: dict[str, Path], redis_url: str, empty_redis: object, tmp_path: Path
) -> None:
    url = str(tmp_path / "made")
    without = {name: bare(folder, tmp_path / f"bare-{name}") for name, folder in folders.items()}
    elsewhere = written(tmp_path / "elsewhere", redis_url, without)
    asked = ("--model", "tuned", "--topology", "cpu:1", "--out", url)
    first = await asyncio.to_thread(compiled, elsewhere, *asked)
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith("5 executables built, 5 were there, 0 failed"), "one for both"
    again = await asyncio.to_thread(compiled, elsewhere, *asked)
    assert again.stdout.startswith("0 executables built, 10 were there, 0 failed"), again.stderr

    fetching = written(tmp_path / "fetching", redis_url, folders, executables=url)
    by_files = await drawn(fetching, NEVER + MAIN, redis_url)
    by_itself = await drawn(written(tmp_path / "itself", redis_url, folders), MAIN, redis_url)
    for one, other in zip(by_files, by_itself, strict=True):
        np.testing.assert_array_equal(one, other)
    assert np.ptp(by_files[0].astype(int) - by_files[1]) > 10, "each has weights of its own"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--model", "sdxl", "--topology", "cpu:1"), 2, "no such model; they have flux, tuned"),
        (("--model", "flux", "--topology", "v9:2"), 2, "topology 'v9:2' is not known; there are"),
        (("--model", "flux", "--topology", "h100:8"), 2, "what GPUs run is compiled where they"),
        (("--model", "flux", "--topology", "cpu:0"), 2, "topology 'cpu:0' is not known"),
        (
            ("--model", "flux", "--topology", "cpu:2", "--devices", "1-2"),
            78,
            "--devices 1-2: this machine has 2 devices",
        ),
        (("--model", "flux", "--topology", "v6e:2x2", "--devices", "0-1"), 2, "goes with cpu:N"),
        (("--model", "flux", "--topology", "v6e:4x4"), 2, "a host has 8 chips at the most"),
        (("--model", "flux", "--pool", "other", "--topology", "cpu:1"), 2, "no such pool serves"),
        (("--model", "flux", "--topology", "cpu:1", "--out", "ftp://x"), 78, "executables: cannot"),
    ],
    ids=str,
)
def test_wrong_use_says_what_to_do(
    arguments: tuple[str, ...], code: int, said: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    config = written(tmp_path / "site", "redis://nowhere", folders)
    out = () if "--out" in arguments else ("--out", str(tmp_path / "made"))
    done = compiled(config, *arguments, *out)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert said in done.stderr


def test_without_an_address_it_asks_for_one(folders: dict[str, Path], tmp_path: Path) -> None:
    config = written(tmp_path / "site", "redis://nowhere", folders)
    done = compiled(config, "--model", "flux", "--topology", "cpu:1")
    assert done.returncode == 2
    assert "--out URL, or `executables` in the settings" in done.stderr


def test_a_bucket_that_is_not_there_is_said_before_anything_is_built(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = written(tmp_path / "site", "redis://nowhere", folders)
    asked = ("--model", "flux", "--topology", "cpu:1", "--out", "s3://missing/executables")
    with object_stores.serving() as server:
        object_stores.use_s3(monkeypatch, server)
        done = compiled(config, *asked)
    assert (done.returncode, done.stdout) == (78, ""), done.stderr
    assert "the folder or bucket is not there; make it, or correct executables" in done.stderr
    assert "built" not in done.stderr


def test_a_slice_of_several_hosts_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    config = written(tmp_path / "site", "redis://nowhere", folders)
    text = config.read_text().replace('also = ["tuned"]', "hosts = {count = 2}")
    config.write_text(text)
    done = compiled(
        config, "--model", "flux", "--topology", "cpu:1", "--out", str(tmp_path / "made")
    )
    assert done.returncode == 78
    assert "pools.flux.hosts: executables are built for slices on one host" in done.stderr


@pytest.mark.timeout(900)
def test_described_chips_get_their_programs(tmp_path: Path) -> None:
    """As far as libtpu's compiler goes: nothing here can run or load them."""
    pytest.importorskip("libtpu")
    config = tmp_path / "atelier.toml"
    flux = {"source": str(ROOT / "models" / "demo" / "flux"), "dtype": "bfloat16"}
    config.write_text(toml("models.flux", flux) + toml("pools.flux", {"model": "flux"}))
    out = tmp_path / "made"
    asked = ("--model", "flux", "--topology", "v6e:1x1", "--out", str(out))
    done = compiled(config, *asked, flags="")
    assert done.returncode == 0, done.stderr
    (manifest,) = (out / "manifests").iterdir()
    found = json.loads(manifest.read_text())
    platform, version = found["key"]["platform"]
    assert platform == "tpu" and "TPU v6 lite" in version, "the runtime's own version"
    assert found["key"]["devices"] == [[0, "TPU v6 lite", "[0, 0, 0]"]]
    assert "--xla_tpu_scoped_vmem_limit_kib" in found["key"]["flags"]["LIBTPU_INIT_ARGS"]
    programs = {one["program"][0]: one["bytes"] for one in found["files"].values()}
    assert {"encode", "step", "decode", "preview", "sketch", "row"} <= programs.keys()
