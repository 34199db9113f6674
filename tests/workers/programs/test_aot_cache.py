"""Compiled programs in files: read if their key is the same, and compiled again otherwise."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.stages import Compiled

from models.interface.pipeline import Clip
from models.interface.step_program import StepProgram
from models.parallel.axis_rules import Layout
from models.parallel.jax_internals import io_callback
from tests.workers.sound_toy import SoundingToy
from tests.workers.toy import ToyPipeline
from workers.programs.aot_cache import ExecutableFiles, packed, unpacked
from workers.programs.compiler import Compiler
from workers.programs.step_latency import BatchLayout
from workers.programs.xla_cache import use_compile_cache

KEY = {"program": ["double"]}


pytestmark = pytest.mark.usefixtures("no_compile_cache")
"""A CPU's program from JAX's cache cannot be stored; see below."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "executables"


class Build:
    """Builder that counts its compilations."""

    def __init__(self, function: Callable[..., Any] = lambda x: jnp.tanh(x * 2)) -> None:
        self.function = function
        self.times = 0

    def __call__(self) -> Compiled:
        self.times += 1
        return (
            jax.jit(self.function).trace(jax.ShapeDtypeStruct((3,), np.float32)).lower().compile()
        )


def program(folder: Path, build: Build, common: str = "here", most: int = 1 << 30) -> Any:
    files = ExecutableFiles(folder, {"model": common}, most)
    return files.program(lambda: KEY, jax.devices()[:1], build)


def only_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_second_program_is_loaded_from_the_cache_and_equal(folder: Path) -> None:
    build, x = Build(), np.arange(3, dtype=np.float32)
    first = program(folder, build)(x)
    np.testing.assert_array_equal(program(folder, build)(x), first)
    assert build.times == 1
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_any_difference_causes_a_compilation(folder: Path) -> None:
    build = Build()
    program(folder, build)
    program(folder, build, common="elsewhere")
    assert build.times == 2
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[:-1],
        lambda text: text[: len(text) // 2],
        lambda text: b"",
        lambda text: text.replace(b"here", b"hers", 1),
        lambda text: text[:-1] + bytes([text[-1] ^ 1]),
        lambda text: packed("no program", {"model": "here", **KEY}),
    ],
    ids=["cut", "half", "empty", "another key", "a bit", "something else"],
)
def test_damaged_file_is_recompiled_with_a_warning(
    folder: Path, caplog: pytest.LogCaptureFixture, change: Callable[[bytes], bytes]
) -> None:
    build = Build()
    program(folder, build)
    path = only_file(folder)
    path.write_bytes(change(path.read_bytes()))
    program(folder, build)
    assert build.times == 2
    assert f"{path} is not used" in caplog.text
    program(folder, build)
    assert build.times == 2, "it was not written anew"


class Trap:
    """Object that creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("mode", [0o702, 0o720])
@pytest.mark.parametrize("place", ["file", "folder"])
def test_file_writable_by_others_is_never_unpickled(folder: Path, place: str, mode: int) -> None:
    build, sprung = Build(), folder.with_name("sprung")
    program(folder, build)
    path = only_file(folder)
    path.write_bytes(packed(Trap(sprung), {"model": "here", **KEY}))
    (path if place == "file" else folder).chmod(mode)
    program(folder, build)
    assert build.times == 2
    assert not sprung.exists()


def test_shared_files_in_the_jax_cache_are_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder := tmp_path / "jax").mkdir()
    folder.chmod(0o770)
    private, shared = folder / "ours-cache", folder / "theirs-cache"
    for path, mode in ((private, 0o600), (shared, 0o660)):
        path.write_bytes(b"code")
        path.chmod(mode)
    use_compile_cache(folder)
    assert [path.name for path in folder.iterdir()] == [private.name]
    assert folder.stat().st_mode & 0o777 == 0o700
    assert "others may write to it" in caplog.text


def test_a_pickle_of_another_key_is_never_opened(folder: Path) -> None:
    text = packed(Trap(folder), {"model": "there"})
    with pytest.raises(ValueError, match="key differs"):
        unpacked(text, {"model": "here"})
    assert not folder.exists()


def test_a_link_is_not_followed(folder: Path) -> None:
    build = Build()
    program(folder, build)
    path = only_file(folder)
    path.rename(folder.with_name("elsewhere"))
    path.symlink_to(folder.with_name("elsewhere"))
    program(folder, build)
    assert build.times == 2


def test_least_recently_used_executable_is_evicted(folder: Path) -> None:
    size = len(packed("x" * 100, {"model": "here", "n": 0}))
    files = ExecutableFiles(folder, {"model": "here"}, max_bytes=2 * size)
    for n in range(2):
        files.fact(partial(dict, n=n), lambda: "x" * 100)
    for age, path in enumerate(sorted(folder.iterdir())):
        os.utime(path, (age, age))
    oldest, newer = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)
    files.fact(lambda: {"n": 2}, lambda: "x" * 100)
    assert not oldest.exists()
    assert newer.exists()


def test_a_program_that_calls_the_host_is_compiled_each_time(folder: Path) -> None:
    def calls(x: jax.Array) -> jax.Array:
        return io_callback(np.asarray, jax.ShapeDtypeStruct((3,), np.float32), x)

    build = Build(calls)
    for _ in range(2):
        assert program(folder, build)(np.ones(3, np.float32)).shape == (3,)
    assert build.times == 2
    assert not folder.exists() or not list(folder.iterdir())


def test_a_cpu_program_from_jaxs_cache_is_not_kept(folder: Path, tmp_path: Path) -> None:
    """The file would lack the machine code, and the program would fail when it is called."""
    use_compile_cache(tmp_path / "jax")
    build = Build(lambda x: jnp.tanh(x * 3))
    program(folder / "first", build)
    jax.clear_caches()
    program(folder / "second", build)
    assert build.times == 2
    assert only_file(folder / "first")
    assert not (folder / "second").exists()


def test_unwritable_folder_is_not_an_error(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The failure is logged once, not once per program."""
    folder.write_text("a file where the folder should be")
    build, files = Build(), ExecutableFiles(folder, {"model": "here"})
    for n in range(3):
        compiled = files.program(partial(dict, program=[n]), jax.devices()[:1], build)
        assert compiled(np.ones(3, np.float32)).shape == (3,)
    read, written = (record.getMessage() for record in caplog.records)
    assert f"stored in {folder} cannot be read" in read
    assert f"stored in {folder} cannot be written" in written


def test_files_are_its_own_under_any_umask(folder: Path) -> None:
    build, usual = Build(), os.umask(0)
    try:
        program(folder, build)
    finally:
        os.umask(usual)
    program(folder, build)
    assert build.times == 1


def test_unrelated_folder_is_not_deleted(folder: Path) -> None:
    (other := folder / "lost+found").mkdir(parents=True)
    files = ExecutableFiles(folder, {"model": "here"}, max_bytes=1)
    for n in range(2):
        files.fact(partial(dict, n=n), lambda: "x" * 100)
    assert list(folder.iterdir()) == [other], "what is too large for the folder goes at once"


@pytest.mark.parametrize("kind", [ToyPipeline, SoundingToy])
def test_a_pipelines_second_compiler_traces_nothing(
    kind: type[ToyPipeline], folder: Path, layout: Layout
) -> None:
    """Rows, changes and operation counts also come from files, and the image is bitwise equal."""
    pipeline = kind()

    def picture() -> tuple[Any, ...]:
        compiler = Compiler(pipeline, layout, ExecutableFiles(folder, {"model": "toy"}))
        prepared = pipeline.prepare({"seed": 7}, {})
        values, batch_layout = (
            prepared.steps[0].values,
            compiler.batch_layouts([2], elastic=False)[-1],
        )
        assert batch_layout == BatchLayout(2)
        encoding = compiler.encoding(prepared.inputs)
        row = encoding.row
        step, changes = compiler.step(StepProgram("plain"), values, batch_layout, row)
        weights = compiler.weights.common
        state = encoding.program(row)(weights, dict(prepared.inputs))
        columns = {name: np.stack([value] * 2) for name, value in values.items()}
        (after, _), _ = step(weights, (state, state), columns)
        pixels = compiler.decode(row)(weights, after).decoded
        flops = compiler.flops(StepProgram("plain"), values, row)
        return (
            [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(pixels)],
            type(pixels) is Clip,
            changes,
            flops,
            compiler.preview(row)(weights, after).decoded.shape,
        )

    first = picture()
    assert first[1] is (kind is SoundingToy)
    pipeline.encode = pipeline.step = pipeline.decode = pipeline.preview = never
    assert picture() == first


def never(*args: Any) -> Any:
    raise AssertionError("traced")
