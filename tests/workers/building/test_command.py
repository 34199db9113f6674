"""Executables built by one process with `atelier compile`, and workers that load them without
tracing."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import atelier
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.settings.queue import QueueSettings
from service.settings.section import ConfigError
from tests import coarse
from tests.service.jobs import object_stores
from tests.test_arrows import ROOT
from tests.workers.flux import REQUEST, tuned
from tests.workers.jobs import ended, pixels
from tests.workers.pool.test_process import toml
from tests.workers.pool.test_several import put, queue_has
from tests.workers.pool_process import MAIN, PoolProcess
from workers.building.target import Target
from workers.slice.topology import PlanError

MODELS = ("flux", "tuned")
NEVER = """
def never(*args, **kwargs):
    raise AssertionError("traced")

from jax.stages import Lowered
from workers.loading import model
from workers.programs.tracer import Tracer
model.sketch = Lowered.compile = never
for name in ("encode", "part", "modulations", "step", "decode", "preview"):
    setattr(Tracer, name, never)
"""
"""Start of a worker's program that raises if a model's programs are traced or compiled.

Small jitted helpers are exempt.
"""
SIZE = {name: REQUEST[name] for name in ("width", "height", "max_sequence_length")}


def compiled(
    config: Path, *arguments: str, flags: str = coarse.FLAGS
) -> subprocess.CompletedProcess[str]:
    """Run `atelier compile`.

    Args:
        flags: XLA flags for CPUs, which libtpu does not accept.
    """
    return subprocess.run(
        [sys.executable, "atelier.py", "compile", "--config", str(config), *arguments],
        cwd=ROOT,
        env={**os.environ, "XLA_FLAGS": flags},
        capture_output=True,
        text=True,
    )


def written(folder: Path, url: str, models: dict[str, Path], **more: object) -> Path:
    """Write the settings of a pool that has its own state folder."""
    folder.mkdir()
    sections: dict[str, dict[str, object]] = {
        "": {"state_dir": str(folder / "state"), **more},
        "redis": {"url": url},
        "queue": {"lease_s": 3},
        "pools.flux": {"model": "flux", "also": ["tuned"], "slots": 2},
        **{
            f"models.{name}": {"source": str(source), "dtype": "float32", "defaults": SIZE}
            for name, source in models.items()
        },
    }
    file = folder / "atelier.toml"
    file.write_text("".join(toml(name, values) for name, values in sections.items()))
    return file


def bare(folder: Path, to: Path) -> Path:
    """Copy a checkpoint without its weights."""
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix != ".safetensors":
            target = to / path.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    return to


@pytest.fixture(scope="module")
def folders(flux_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tuned") / "tuned"
    return dict(zip(MODELS, (flux_folder, tuned(flux_folder, folder)), strict=True))


async def drawn(config: Path, main: str, redis_url: str) -> list[np.ndarray]:
    """Start a worker, generate one image with each model, and stop the worker."""
    process = PoolProcess(config, config.with_suffix(".log"), main=main)
    queue = await Queue.connect(redis_url, QueueSettings(lease_s=3))
    store = Store(str(config.parent / "state" / "outputs"))
    try:
        for model in MODELS:
            await queue_has(queue, model, process)
        jobs = [await ended(queue, await put(queue, model, 7)) for model in MODELS]
        images = [(await pixels(store, job))[0] for job in jobs]
        log = process.said
    finally:
        process.end()
        await queue.close()
    assert "executables cannot be" not in log and "is not used" not in log, log
    return images


@pytest.mark.timeout(900)  # two builds and two workers, minutes on two busy cores
async def test_prebuilt_programs_give_the_same_image(
    folders: dict[str, Path], redis_url: str, empty_redis: object, tmp_path: Path
) -> None:
    url = str(tmp_path / "made")
    bare_folders = {
        name: bare(folder, tmp_path / f"bare-{name}") for name, folder in folders.items()
    }
    build_config = written(tmp_path / "elsewhere", redis_url, bare_folders)
    arguments = ("--model", "tuned", "--topology", "cpu:1", "--out", url)
    first = await asyncio.to_thread(compiled, build_config, *arguments)
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith("5 executables built, 5 already stored, 0 failed"), (
        "one for both"
    )
    again = await asyncio.to_thread(compiled, build_config, *arguments)
    assert again.stdout.startswith("0 executables built, 10 already stored, 0 failed"), again.stderr

    fetch_config = written(tmp_path / "fetching", redis_url, folders, executables=url)
    fetched = await drawn(fetch_config, NEVER + MAIN, redis_url)
    compiled_here = await drawn(written(tmp_path / "itself", redis_url, folders), MAIN, redis_url)
    for image, expected in zip(fetched, compiled_here, strict=True):
        np.testing.assert_array_equal(image, expected)
    assert np.ptp(fetched[0].astype(int) - fetched[1]) > 10, "each has weights of its own"


SEVERAL_HOSTS = "hosts = {count = 2}"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--model", "sdxl"), 2, "no such model; they have flux, tuned"),
        (("--topology", "v9:2"), 2, "topology 'v9:2' is not known; there are"),
        (("--topology", "h100:8"), 2, "programs for GPUs are compiled on their machine"),
        (("--topology", "cpu:0"), 2, "topology 'cpu:0' is not known"),
        (("--topology", "v6e:2x2", "--devices", "0-1"), 2, "requires cpu:N"),
        (("--pool", "other"), 2, "no such pool serves"),
        (("--out", ""), 2, "--out URL, or `executables` in the settings"),
        (("--out", "ftp://x"), 78, "executables: cannot"),
        (("--out", "s3://missing/x"), 78, "the folder or bucket does not exist; create it, or"),
        ((SEVERAL_HOSTS,), 78, "pools.flux.hosts: executables are built for slices on one host"),
    ],
    ids=str,
)
def test_invalid_arguments_name_the_fix(
    arguments: tuple[str, ...],
    code: int,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """These errors precede reading checkpoints and configuring JAX, so this process finds them."""
    config = written(tmp_path / "site", "redis://nowhere", dict.fromkeys(MODELS, tmp_path))
    monkeypatch.setenv("ATELIER_CONFIG", str(config))  # as the option, which would outlive the test
    if SEVERAL_HOSTS in arguments:
        config.write_text(config.read_text().replace('also = ["tuned"]', SEVERAL_HOSTS))
        arguments = ()
    out = str(tmp_path / "made")
    defaults = ("--model", "flux", "--topology", "cpu:1", "--out", out)
    with object_stores.serving() as server:
        object_stores.use_s3(monkeypatch, server)
        assert atelier.main(["compile", *defaults, *arguments]) == code
    printed = capsys.readouterr()
    assert message in printed.err and not printed.out


def test_more_devices_than_there_are_are_refused() -> None:
    with pytest.raises(PlanError, match="a host has at most 8 chips"):
        Target.parse("v6e:4x4").devices()
    with pytest.raises(ConfigError, match="--devices 7-8: this machine has 8 devices"):
        Target.parse("cpu:9", range(7, 9)).devices()


@pytest.mark.timeout(900)
def test_described_chips_get_their_programs(tmp_path: Path) -> None:
    """Check only the compilation for TPUs: this machine cannot run or load the executables."""
    pytest.importorskip("libtpu")
    config = tmp_path / "atelier.toml"
    flux = {"source": str(ROOT / "models" / "demo" / "flux"), "dtype": "bfloat16"}
    config.write_text(toml("models.flux", flux) + toml("pools.flux", {"model": "flux"}))
    out = tmp_path / "made"
    arguments = ("--model", "flux", "--topology", "v6e:1x1", "--out", str(out))
    result = compiled(config, *arguments, flags="")
    assert result.returncode == 0, result.stderr
    (manifest,) = (out / "manifests").iterdir()
    content = json.loads(manifest.read_text())
    platform, version = content["key"]["platform"]
    assert platform == "tpu" and "TPU v6 lite" in version, "the runtime's own version"
    assert content["key"]["devices"] == [[0, "TPU v6 lite", "[0, 0, 0]"]]
    assert "--xla_tpu_scoped_vmem_limit_kib" in content["key"]["flags"]["LIBTPU_INIT_ARGS"]
    programs = {file["program"][0]: file["bytes"] for file in content["files"].values()}
    assert {"encode", "step", "decode", "preview", "sketch", "row"} <= programs.keys()
