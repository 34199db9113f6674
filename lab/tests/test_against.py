"""The comparison with diffusers: both sides do the same work, and turns give the right ratios."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import jax
import pytest
import torch
from rich.console import Console

import models.demo
from lab.bench.against.__main__ import main
from lab.bench.against.compare import (
    NotMeasured,
    NotTheSame,
    Sides,
    check_same,
    compared,
    run_turn,
)
from lab.bench.against.diffusers_turn import parsed, turn
from lab.bench.against.pipelines import made
from lab.bench.against.served import Side, diffusers_server
from lab.bench.against.table import show
from models import registry
from models.loading.sources import SHAPES
from workers.programs import warmup
from workers.programs.compiler import Compiler
from workers.slice.mesh import one_device

DEMO = Path(models.demo.__file__).parent
SIZES: dict[str, dict[str, Any]] = {
    "flux": {"width": 64, "height": 96, "max_sequence_length": 16, "true_cfg_scale": 2.0},
    "sdxl": {"width": 32, "height": 48},
    "wan": {"width": 64, "height": 96, "num_frames": 5, "max_sequence_length": 8},
}
"""Enough tokens that work once per request or step is negligible, because the sides may do it at
different places."""
GUIDED = {"guidance_scale": 3.0, "num_inference_steps": 1}


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Use one torch thread; with tiny networks, threads only wait for each other."""
    default = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(default)


@pytest.mark.parametrize("family", SIZES)
def test_reference_run_does_the_same_work(family: str, one_thread: None) -> None:
    request = {**SIZES[family], **GUIDED}
    words = ["--request", json.dumps(request), "--dtype", "float32", "--repeats", "1", "--eager"]
    theirs = turn(parsed([str(DEMO / family), *words, "--count", "--side", "64", "--json", "-"]))
    assert set(theirs["seconds"]) == {"encode", "denoise", "decode", "request", "step"}
    for encode, denoise, decode, total in zip(
        *(theirs["seconds"][name] for name in ("encode", "denoise", "decode", "request")),
        strict=True,
    ):
        assert min(encode, denoise, decode) > 0
        assert encode + denoise + decode == pytest.approx(total)
    assert theirs["how"] == "eager" and theirs["peak_bytes"] is None
    ours = {"steps": GUIDED["num_inference_steps"], "step_flops": our_flops(family, request)}
    check_same(ours, theirs)


def our_flops(family: str, request: dict[str, Any]) -> float:
    pipeline = registry.load(family, str(DEMO / family), "float32", {}, reader=SHAPES)
    (fields,) = warmup.requests(pipeline.spec, [request])
    prepared = warmup.prepare(pipeline, fields)
    compiler = Compiler(pipeline, one_device(jax.devices()[0]))
    row = compiler.tracer.encode(prepared.inputs).out_info
    step = prepared.steps[0]
    return compiler.flops(step.program, step.values, row)


OURS: dict[str, Any] = {
    "model": "some", "tiny": False, "batch": 1, "bucket": "64x64", "dtype": "bfloat16", "steps": 4,
    "step_flops": 1e12, "matrix_flops": 5e14, "matrix": [{"side": 64}], "versions": {"jax": "1"},
    "memory": {"peak_bytes": 2**30, "by": "device"},
    "seconds": {"step": [0.01, 0.02, 0.03], "encode": [1.0], "decode": [1.0], "request": [1.0]},
}  # fmt: skip
THEIRS: dict[str, Any] = {
    "steps": 4, "step_flops": 1.01e12, "matrix_flops": 4e14, "peak_bytes": 2**31, "chip": "Some",
    "attention": "flash", "how": "torch.compile", "versions": {"torch": "2"},
    "seconds": {"step": [0.05, 0.05, 0.05], "encode": [2.0], "decode": [0.5], "request": [1.2]},
}  # fmt: skip


def test_turns_alternate_and_later_ones_know_the_first() -> None:
    order: list[str] = []

    def theirs(ours: dict[str, Any], first: dict[str, Any] | None) -> dict[str, Any]:
        order.append("theirs" if first is None else f"theirs, knowing {first['attention']}")
        return deepcopy(THEIRS)

    def ours() -> dict[str, Any]:
        order.append("ours")
        return deepcopy(OURS)

    steps = list(compared("some", Sides(ours, theirs), turns=2))
    assert order == ["ours", "theirs", "ours", "theirs, knowing flash"]
    assert [(len(state.ours), len(state.theirs)) for state in steps] == [
        (1, 0),
        (1, 1),
        (2, 1),
        (2, 2),
    ]
    first_state = steps[0].as_json()
    assert first_state["ratios"]["step"] == [] and first_state["mfu"]["theirs"] is None
    show([first_state], Console(file=io.StringIO()))


def test_ratios_memory_and_mfu() -> None:
    *_, last = compared("some", Sides(lambda: OURS, lambda ours, first: THEIRS), turns=2)
    report = last.as_json()
    assert report["ratios"]["step"] == pytest.approx([2.5, 2.5])
    assert report["ratios"]["decode"] == pytest.approx([0.5, 0.5])
    assert report["matrix_flops"] == 5e14, "one card has one rate: the better of the two"
    assert report["mfu"] == pytest.approx(
        {"ours": 1e12 / 0.02 / 5e14, "theirs": 1e12 / 0.05 / 5e14}
    )
    assert report["peak_bytes"] == {"ours": 2**30, "theirs": 2**31}
    console = Console(width=120, record=True)
    show([report], console)
    text = console.export_text()
    for part in ("2.50 (2.50 to 2.50)", "1.00 GiB", "2.00 GiB", "10.0%", "4.0%", "Some"):
        assert part in text


def test_a_compilers_count_of_memory_is_compared_with_nothing() -> None:
    ours = {**OURS, "memory": {"peak_bytes": 5, "by": "compiler"}}
    *_, last = compared("some", Sides(lambda: ours, lambda own, first: THEIRS), turns=1)
    assert last.peaks == (None, 2**31)


@pytest.mark.parametrize("change", [{"steps": 5}, {"step_flops": 2e12}], ids=str)
def test_other_work_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(NotTheSame, match="step"):
        check_same(OURS, {**THEIRS, **change})


def test_a_model_that_cannot_be_compared_says_why(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The error is the turn's refusal, or that the model is unknown; other models are
    unaffected."""
    words = ["--tiny", "--turns", "1", "--width", "100", "--json", str(tmp_path / "ratios.json")]
    assert main(["none", "flux-dev", *words]) == 1
    unknown, refused = capfd.readouterr().err.splitlines()[-2:]
    assert unknown.startswith("none: ") and "flux-dev" in unknown
    assert refused.startswith("flux-dev: ours: width: must be a positive multiple of 16")


def test_what_an_earlier_turn_wrote_is_no_result(tmp_path: Path) -> None:
    file = tmp_path / "ours.json"
    file.write_text("{}")
    with pytest.raises(NotMeasured, match="ours: ended with exit code 3"):
        run_turn("ours", [sys.executable, "-c", "raise SystemExit(3)"], file)


def test_kinds_that_are_not_compared_are_named(tmp_path: Path) -> None:
    index = {"_class_name": "WanImageToVideoPipeline"}
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="FluxPipeline"):
        made(tmp_path, "cpu", torch.float32)


def test_fastapi_with_diffusers_answers_several_clients() -> None:
    small = {"num_inference_steps": 1, "width": 32, "height": 32}
    with diffusers_server(DEMO / "flux") as url:
        side = Side(f"{url}/generate", small)
        assert asyncio.run(side.rate(clients=2, seconds=0.1)) > 0
