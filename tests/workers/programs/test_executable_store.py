"""Executables built elsewhere: fetched if they are valid, and compiled otherwise."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jax
import numpy as np
import pytest
from prometheus_client import REGISTRY

from service.jobs.storage.object_store import Store
from service.settings.section import ConfigError
from tests.service.jobs import object_stores
from tests.service.jobs.object_stores import BUCKET, Server
from tests.workers.polling import DEADLINE_S
from tests.workers.programs.test_aot_cache import Build, Trap
from workers.building.stored import BuildReport, ProgramOutcome, StoredPrograms
from workers.programs.aot_cache import digest, file_name, packed
from workers.programs.executable_store import THREAD, manifest_name
from workers.programs.program_folder import ProgramFolder

pytestmark = pytest.mark.usefixtures("no_compile_cache")

MODEL = {"configs": "some", "settings": {}}
KEY, FACT = {"program": ["double"]}, {"program": ["a fact"]}
X = np.arange(3, dtype=np.float32)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "store")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "here"


def built(url: str, build: Build, model: dict[str, Any] = MODEL) -> list[ProgramOutcome]:
    """Build a program and a fact, as `atelier compile` does."""
    report = BuildReport(lambda program: None)
    programs = StoredPrograms(Store(url), jax.devices(), report)
    model_programs = programs.of_model(model)
    model_programs.program(lambda: KEY, jax.devices()[:1], build)
    model_programs.fact(lambda: FACT, lambda: "found elsewhere")
    programs.save()
    return report.programs


def started(url: str, folder: Path, build: Build) -> tuple[Any, Any]:
    """Return the result and the fact that a worker gets at its start."""
    model_programs = ProgramFolder(folder, jax.devices(), url).of_model(MODEL)
    program = model_programs.program(lambda: KEY, jax.devices()[:1], build)
    return program(X), model_programs.fact(lambda: FACT, lambda: "found here")


def file_of(url: str, program: list[str]) -> Path:
    (manifest,) = (Path(url) / "manifests").iterdir()
    files = json.loads(manifest.read_text())["files"]
    (name,) = (name for name, entry in files.items() if entry["program"] == program)
    return Path(url) / name


def count(result: str) -> float:
    return REGISTRY.get_sample_value("atelier_executables_total", {"result": result}) or 0.0


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings, after all fetches have ended."""
    for thread in threading.enumerate():
        if thread.name == THREAD:
            thread.join(DEADLINE_S)
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_built_executable_is_fetched_and_equal(
    url: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    build, local_build = Build(), Build()
    assert [entry.outcome for entry in built(url, build)] == ["built"]
    fetched, hits = count("fetched"), count("hit")
    result, fact = started(url, folder, local_build)
    np.testing.assert_array_equal(result, Build()()(X))
    assert (build.times, local_build.times, fact) == (1, 0, "found elsewhere")
    assert (count("fetched") - fetched, count("hit") - hits) == (2, 1)
    assert not warnings(caplog)


def test_existing_executable_is_not_rebuilt(url: str) -> None:
    build = Build()
    assert [entry.outcome for _ in range(2) for entry in built(url, build)] == ["built", "there"]
    assert build.times == 1


def test_fetched_executable_is_not_fetched_again(url: str, folder: Path) -> None:
    built(url, Build())
    started(url, folder, Build())
    fetched = count("fetched")
    file_of(url, KEY["program"]).unlink()
    local_build = Build()
    started(url, folder, local_build)
    assert (local_build.times, count("fetched")) == (0, fetched)


def trap(path: Path) -> bytes:
    return packed(Trap(path.with_name("sprung")), {"another": "key"})


@pytest.mark.parametrize("harm", ["cut", "a trap", "missing"])
def test_a_damaged_file_is_compiled_with_one_warning(
    url: str, folder: Path, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    built(url, Build())
    path = file_of(url, KEY["program"])
    if harm == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1] if harm == "cut" else trap(path))
    unfetched, local_build = count("unfetched"), Build()
    _, fact = started(url, folder, local_build)
    assert (local_build.times, fact) == (1, "found elsewhere")
    assert count("unfetched") - unfetched == 1
    (warning,) = warnings(caplog)
    assert "1 of 2 executables cannot be fetched" in warning
    assert not path.with_name("sprung").exists()


def test_a_file_of_another_key_under_that_name_is_compiled(
    url: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The file must contain the requested key, even if the manifest agrees with the file."""
    built(url, Build())
    path, (manifest,) = file_of(url, KEY["program"]), (Path(url) / "manifests").iterdir()
    content = json.loads(manifest.read_text())
    path.write_bytes(trap(path))
    content["files"][path.name]["sha256"] = digest(path.read_bytes())
    manifest.write_text(json.dumps(content))
    refused, local_build = count("refused"), Build()
    started(url, folder, local_build)
    assert (local_build.times, count("refused") - refused) == (1, 1)
    assert not path.with_name("sprung").exists()
    assert any("its key differs" in warning for warning in warnings(caplog))


def test_without_a_manifest_the_nearest_is_named(
    url: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    built(url, Build(), {**MODEL, "configs": "others"})
    local_build = Build()
    _, fact = started(url, folder, local_build)
    assert (local_build.times, fact) == (1, "found here")
    (warning,) = warnings(caplog)
    assert warning.endswith("the most similar ones there differ in: configs")


def test_empty_store_is_reported_once(
    url: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    local_build = Build()
    started(url, folder, local_build)
    assert local_build.times == 1
    (warning,) = warnings(caplog)
    assert f"{url} has no executables for this model" in warning and "similar" not in warning


@pytest.mark.parametrize("text", [b"no manifest", b'{"format": 2, "key": {}}'])
def test_damaged_manifest_is_ignored_with_a_warning(
    url: str, folder: Path, text: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    built(url, Build())
    (manifest,) = (Path(url) / "manifests").iterdir()
    manifest.write_bytes(text)
    local_build = Build()
    started(url, folder, local_build)
    assert local_build.times == 1
    (warning,) = warnings(caplog)
    assert manifest.name in warning


def test_build_recovers_lost_files(url: str) -> None:
    """The manifest lists existing files. A fact that cannot be read is found again."""
    build = Build()
    built(url, build)
    file_of(url, FACT["program"]).write_bytes(b"damaged")
    built(url, build)
    assert build.times == 1
    assert b"found elsewhere" in file_of(url, FACT["program"]).read_bytes()


def test_names_in_stores_are_those_of_folders(url: str, folder: Path) -> None:
    built(url, Build())
    started(url, folder, Build())
    stored = {path.name for path in Path(url).iterdir() if path.is_file()}
    assert stored == {path.name for path in (folder / "executables").iterdir()}
    (manifest,) = (Path(url) / "manifests").iterdir()
    key = json.loads(manifest.read_text())["key"]
    assert manifest_name(key) == f"manifests/{file_name(key)}.json" == f"manifests/{manifest.name}"


def test_an_address_of_no_store_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="executables: cannot open 'ftp://there'"):
        ProgramFolder(folder, jax.devices(), "ftp://there")


@pytest.fixture
def server() -> Iterator[Server]:
    with object_stores.serving() as server:
        yield server


USE = {"s3": object_stores.use_s3, "gs": object_stores.use_gcs}


@pytest.mark.parametrize("kind", USE)
def test_buckets_keep_them(
    kind: str, server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    httpx.put(f"{server.url}/{BUCKET}", timeout=DEADLINE_S).raise_for_status()
    USE[kind](monkeypatch, server)
    local_build, url = Build(), f"{kind}://{BUCKET}/executables"
    built(url, Build())
    _, fact = started(url, folder, local_build)
    assert (local_build.times, fact) == (0, "found elsewhere")


def test_missing_bucket_is_a_warning(
    server: Server,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    object_stores.use_s3(monkeypatch, server)
    local_build = Build()
    started("s3://missing/executables", folder, local_build)
    assert local_build.times == 1
    (warning,) = warnings(caplog)
    assert "the folder or bucket does not exist; create it, or correct executables" in warning
