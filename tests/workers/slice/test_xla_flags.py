"""XLA flags by chip and model, each of which the compilers accept."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib

import pytest

from workers.slice import xla_flags
from workers.slice.devices import TPUS

ASK_LIBTPU = """
from models.parallel.jax_internals import get_topology_desc
get_topology_desc(platform="tpu", topology_name="v6e:2x4")
"""
ASK_XLA = "import jax; jax.devices()"
ENTRIES = tomllib.loads(xla_flags.TABLE.read_text())["set"]


def asked(program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": "v6e-8",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        **variables,
    }
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )


def every(kind: str) -> str:
    return " ".join(sorted({flag for entry in ENTRIES for flag in entry.get(kind, [])}))


def test_the_compilers_know_every_flag() -> None:
    assert asked(ASK_LIBTPU, LIBTPU_INIT_ARGS=every("libtpu")).returncode == 0
    assert asked(ASK_XLA, XLA_FLAGS=every("xla")).returncode == 0


@pytest.mark.parametrize(
    ("program", "variable"), [(ASK_LIBTPU, "LIBTPU_INIT_ARGS"), (ASK_XLA, "XLA_FLAGS")]
)
def test_unknown_flag_is_rejected_by_the_compiler(program: str, variable: str) -> None:
    assert asked(program, **{variable: "--xla_tpu_make_it_fast=true"}).returncode != 0


def test_flag_sets_apply_to_their_chips_and_families() -> None:
    assert not xla_flags.chosen(None, "flux")
    assert xla_flags.chosen("nvidia", "flux").keys() == {"xla"}
    limits = {
        name: [flag for flag in xla_flags.chosen("v6e", name)["libtpu"] if "vmem" in flag]
        for name in ("flux", "sdxl", "wan")
    }
    limit = "--xla_tpu_scoped_vmem_limit_kib"
    assert limits == {
        "flux": [f"{limit}=65536"], "sdxl": [f"{limit}=65536"], "wan": [f"{limit}=98304"],
    }  # fmt: skip
    assert "vmem_limit" not in " ".join(xla_flags.chosen("v5e", "wan")["libtpu"])


def test_a_gpu_that_has_to_be_exact_measures_no_kernels() -> None:
    assert "--xla_gpu_autotune_level=0" in xla_flags.of_settings("auto", "nvidia", "flux")["xla"]
    fast = xla_flags.of_settings("auto", "nvidia", "flux", "fast")["xla"]
    assert fast and not any("autotune" in flag for flag in fast)


def test_every_chip_in_the_table_is_detectable() -> None:
    assert {chip for entry in ENTRIES for chip in entry["chips"]} <= {*TPUS.values(), "nvidia"}


def test_xla_flags_of_the_operator_come_last() -> None:
    flags = xla_flags.of_settings(["--a=1"], None, "flux")
    assert xla_flags.environment(flags, {"XLA_FLAGS": "--a=2"}) == {"XLA_FLAGS": "--a=1 --a=2"}
    assert xla_flags.environment(xla_flags.of_settings([], None, "flux"), {}) == {}


@pytest.mark.parametrize(("chip", "kind"), [("v6e", "libtpu"), ("nvidia", "xla")])
def test_pool_flags_extend_or_replace_the_table(chip: str, kind: str) -> None:
    table_flags = xla_flags.chosen(chip, "flux")
    first, *further = table_flags[kind]
    off = f"{xla_flags.name_of(first)}=false"
    assert xla_flags.of_settings([off, "--a=1"], chip, "flux") == {kind: (off, *further, "--a=1")}
    assert (
        xla_flags.of_settings([], chip, "flux")
        == xla_flags.of_settings("auto", chip, "flux")
        == table_flags
    )


def test_flags_that_exactness_needs_are_enforced() -> None:
    xla_flags.check_batching(["--xla_gpu_autotune_level=0", "--a=1"], "nvidia", "flux", "exact")
    xla_flags.check_batching(measured := ["--xla_gpu_autotune_level=4"], "nvidia", "flux", "fast")
    xla_flags.check_batching(measured, None, "flux", "exact")
    with pytest.raises(ValueError, match=r'"exact" needs --xla_gpu_autotune_level=0, not .*=4'):
        xla_flags.check_batching(measured, "nvidia", "flux", "exact")
