"""Test cache of compiled programs: its folder, pruning and use."""

from __future__ import annotations

import os
from pathlib import Path

import jax
import numpy as np
import pytest

from tests import compile_cache


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(compile_cache.FOLDER, str(tmp_path))
    cache = compile_cache.folder()
    assert cache is not None and cache.parent == tmp_path
    return cache


def test_empty_folder_name_disables_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compile_cache.FOLDER, "")
    assert compile_cache.folder() is None and compile_cache.environment() == {}


def test_programs_are_cached_within_the_context(place: Path) -> None:
    before = jax.config.values["jax_compilation_cache_dir"]

    def program(x: jax.Array) -> jax.Array:
        return x * 2.75 + 0.5

    with compile_cache.kept():
        jax.jit(program).lower(np.float32(1)).compile()
    assert [*place.glob("jit_program-*")]
    assert jax.config.values["jax_compilation_cache_dir"] == before


def test_oldest_files_are_evicted(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_cache, "MAX_BYTES", 30)
    monkeypatch.setattr(compile_cache, "MIN_BYTES", 20)
    systems = compile_cache.folder_of_systems()
    assert systems == place / "systems"
    files = [place / "first", systems / "second", place / "third"]
    for age, file in enumerate(files):
        file.write_bytes(bytes(10))
        os.utime(file, (1000 + age, 1000 + age))
    compile_cache.prune()
    assert all(file.exists() for file in files), "they are not too many"
    (place / "fourth").write_bytes(bytes(1))
    compile_cache.prune()
    assert [file.exists() for file in files] == [False, False, True]
