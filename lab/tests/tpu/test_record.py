"""Recorded schedules are reused for equal programs and versions, and compiled again otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from lab.tests.tpu.test_operations import TEXT
from lab.tpu.cases import CASES, NO_PLACES, fingerprint
from lab.tpu.record import NOTHING, Stale, current, read, with_steps, write
from lab.tpu.schedule import Step, parts
from models.parallel.jax_internals import pallas as pl

VERSIONS: dict[str, str | None] = {"jax": "1", "libtpu": "2", "flax": "3"}
PROGRAMS = {"wan": "a program", "flux-tensor": "another"}
WAN, FLUX = (Step(name, parts(TEXT, 70e3, {}), 1e12) for name in PROGRAMS)
RECORD = with_steps(NOTHING, [WAN, FLUX], PROGRAMS, VERSIONS)


def never(name: str) -> Step:
    raise AssertionError(f"{name} was compiled")


def test_record_round_trips_without_single_operations(tmp_path: Path) -> None:
    path = tmp_path / "schedule.json"
    write(RECORD, path)
    assert read(path) == RECORD
    assert RECORD.steps["wan"].xla_s == WAN.xla_s and not RECORD.steps["wan"].parts[0].operations
    assert read(tmp_path / "none.json") == NOTHING


def test_the_same_programs_are_not_compiled_again() -> None:
    assert current(RECORD, PROGRAMS, VERSIONS, never) == RECORD.steps
    assert current(RECORD, PROGRAMS, {**VERSIONS, "jax": "1.1"}, never) == RECORD.steps


def test_program_change_is_reported_with_instructions() -> None:
    with pytest.raises(Stale, match='make -C lab tpu-schedule ARGS="wan --write"'):
        current(RECORD, {**PROGRAMS, "wan": "a new one"}, VERSIONS, never)


@pytest.mark.parametrize(
    ("programs", "changed", "again"),
    [
        ({}, {"libtpu": "2.1"}, ["wan", "flux-tensor"]),
        ({"wan": "as the new JAX has it"}, {"jax": "1.1"}, ["wan"]),
    ],
)
def test_other_versions_compile(
    programs: dict[str, str], changed: dict[str, str], again: list[str]
) -> None:
    compiled: list[str] = []

    def compile(name: str) -> Step:
        compiled.append(name)
        return replace(WAN, name=name, attention_flops=2.0)

    steps_by_name = current(RECORD, PROGRAMS | programs, VERSIONS | changed, compile)
    assert compiled == again
    assert [name for name, step in steps_by_name.items() if step.attention_flops == 2.0] == again


def test_recompiled_case_keeps_valid_records() -> None:
    new = replace(WAN, attention_flops=2.0)
    changed = {**PROGRAMS, "wan": "a new one"}
    updated = with_steps(RECORD, [new], changed, VERSIONS)
    assert (
        updated.programs == changed and updated.steps["flux-tensor"] == RECORD.steps["flux-tensor"]
    )
    assert updated.steps["wan"].attention_flops == 2.0
    assert [*with_steps(RECORD, [new], PROGRAMS, {**VERSIONS, "libtpu": "3"}).steps] == ["wan"]


SOURCE = """
def kernel(x, out):
    out[...] = 2 * x[...] + 1

def doubled(x):
    return pl.pallas_call(kernel, out_shape=x)(x) * 3
"""


@pytest.fixture
def fingerprinted() -> Iterator[Callable[[str, str], str]]:
    """Function of (source, file) that returns the fingerprint after lowering for a TPU."""
    option = "jax_traceback_in_locations_limit"
    before = jax.config.values[option]
    jax.config.update(option, NO_PLACES)

    def program(source: str, file: str) -> str:
        names = {"pl": pl}
        exec(compile(source, file, "exec"), names)
        traced = jax.jit(names["doubled"]).trace(jnp.ones((8, 128)))
        text = traced.lower(lowering_platforms=("tpu",)).as_text()
        assert "tpu_custom_call" in text
        return fingerprint(CASES["wan"], text)

    yield program
    jax.config.update(option, before)


def test_source_paths_are_not_in_the_fingerprint(
    fingerprinted: Callable[[str, str], str],
) -> None:
    assert fingerprinted(SOURCE, "one.py") == fingerprinted("\n# moved\n" + SOURCE, "/a/two.py")


@pytest.mark.parametrize("change", [("2 * x", "4 * x"), ("(x) * 3", "(x) / 3")])
def test_what_is_computed_is(
    change: tuple[str, str], fingerprinted: Callable[[str, str], str]
) -> None:
    """Changes in the kernel and around it both count."""
    assert fingerprinted(SOURCE, "one.py") != fingerprinted(SOURCE.replace(*change), "one.py")


def test_fingerprint_includes_chips_and_layout_but_no_long_constants() -> None:
    wan, program = CASES["wan"], '%0 = stablehlo.constant dense<"0x0A"> : tensor<1xui8>'
    first = fingerprint(wan, program)
    assert fingerprint(wan, program.replace("0x0A", "0x0B")) == first
    assert fingerprint(replace(wan, topology="v5e:2x4"), program) != first
    assert fingerprint(replace(wan, mesh={"cfg": 2, "context": 4, "data": 1}), program) != first
