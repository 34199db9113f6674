"""Comparison of the native and the diffusers worker: turns, ratios, the trace and its table."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import models.demo
from deploy.bench.serving.compare import NATIVE, STAGES, compared, default_trace, show, spread
from deploy.bench.serving.load import NotMeasured
from deploy.cli import bench_compare
from service.settings.models import ModelSettings, SizeSettings
from service.settings.pools import PoolSettings
from service.settings.settings import Settings

SDXL = Path(models.demo.__file__).parent / "sdxl"


def turn(seconds: float, steps: int = 8) -> dict[str, Any]:
    requests = [{"prompt": "a"}, {"prompt": "b"}]
    times = {"device": [seconds, 3 * seconds], "request": [4 * seconds], "trace": [6 * seconds]}
    return {**times, "steps": steps, "requests": requests}


def test_turns_alternate_and_each_pair_has_a_ratio() -> None:
    order: list[str] = []
    times = iter([1.0, 4.0, 2.0, 1.0])

    def run(backend: str) -> dict[str, Any]:
        order.append(backend)
        return turn(next(times))

    report = compared("sdxl", run, turns=2).as_json()
    assert order == ["native", "diffusers", "native", "diffusers"]
    assert report["ratios"] == {stage: [4.0, 0.5] for stage in STAGES}
    assert report["machine"]["cores"] and "torch" in report["versions"]
    console = Console(width=140, record=True)
    show(report, console)
    text = console.export_text()
    assert "2.25 (0.50 to 4.00)" in text
    assert "2.5 s (1 s to 6 s)" in text, "every time of every turn counts"
    assert "2 turns each; a trace of 2 requests with 8 steps in all" in text


def test_spread_is_the_median_with_its_range() -> None:
    assert spread([3.0, 1.0, 2.0]) == "2.00 (1.00 to 3.00)"


def test_different_amounts_of_work_have_no_ratio() -> None:
    def run(backend: str) -> dict[str, Any]:
        return turn(1.0, steps=8 if backend == NATIVE else 9)

    with pytest.raises(NotMeasured, match="ran 8 steps, and diffusers 9"):
        compared("sdxl", run, turns=1)


def test_default_trace_sets_fields_with_different_backend_defaults() -> None:
    listed = {"defaults": {"width": 64, "guidance_scale": 5.0, "scheduler": "euler"}}
    trace = default_trace("m", 2, {"width": 32}, listed)
    assert [request.at_s for request in trace] == [0, 0]
    first, second = (request.request for request in trace)
    assert first["width"] == 32 and first["guidance_scale"] == 5.0 and "scheduler" not in first
    assert (first["seed"], second["seed"]) == (0, 1) and first["prompt"] != second["prompt"]


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench_compare.add_arguments(parser)
    return parser.parse_args(words)


def test_each_backend_gets_the_settings_that_hold_for_it(tmp_path: Path) -> None:
    """The diffusers worker would refuse those of native models."""
    settings = Settings(
        models={"m": ModelSettings(source="x", sizes=(SizeSettings(width=64, height=64),))},
        pools={"p": PoolSettings(model="m", slots=4)},
        aliases={"other": "m"},
    )
    args = parsed("--model", "m", "--dtype", "float32")
    native, torch = (
        bench_compare.of_backend(settings, "m", backend, args, tmp_path)
        for backend in ("native", "diffusers")
    )
    assert native.pools["m"].slots == 4 and len(native.models["m"].sizes) == 1
    assert torch.pools["m"].slots is None and torch.models["m"].sizes == "any"
    for side in (native, torch):
        assert side.models["m"].source == "x" and side.models["m"].dtype == "float32"
        assert side.state_dir.is_relative_to(tmp_path) and not side.aliases


def test_compare_of_a_checkpoint(tmp_path: Path) -> None:
    """Starts both workers once, and runs the same steps on each."""
    file = tmp_path / "report.json"
    words = ("--model", str(SDXL), "--dtype", "float32", "--turns", "1", "--requests", "2")
    sizes = ("--width", "32", "--height", "32", "--steps", "2")
    assert bench_compare.run(parsed(*words, *sizes, "--json", str(file))) == 0
    report = json.loads(file.read_text())
    for side in ("native", "diffusers"):
        (measured,) = report[side]
        assert len(measured["device"]) == len(measured["request"]) == 2
        assert measured["steps"] == 4
    assert all(ratio > 0 for (ratio,) in report["ratios"].values())
