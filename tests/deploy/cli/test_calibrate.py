"""`atelier calibrate` of a small Flux writes presets with reproducible figures to its
checkpoint."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest

from deploy.exit_codes import EXIT_USAGE
from models import registry
from models.checkpoint.folder import CheckpointError, read_qualities
from models.checkpoint.presets_file import write_qualities
from models.spec.quality_presets import GuidanceInterval, Quality
from models.spec.step_plan import PlannedCache
from tests.parity.tiny import make_flux
from tests.parity.tiny_ltx_pipeline import make_ltx
from workers.media.psnr import psnr_db

STEPS, MORE_STEPS = 4, 6
SMALL = {"width": 32, "height": 32, "max_sequence_length": 16}
ROUNDED_DB = 0.2
"""Tolerance of figures with one decimal. Another program may round pixels differently by one
level."""


def calibrate(folder: Path, state: Path, *more: str) -> subprocess.CompletedProcess[str]:
    options = ["calibrate", "--model", str(folder), "--state", str(state), "--dtype", "float32"]
    options += ["--devices", "0-0", "--steps", str(STEPS), *more]
    command = [sys.executable, "-m", "atelier", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_flux(tmp_path_factory.mktemp("flux"))
    before = {"defaults": SMALL, "quality": {"mine": {"guidance": {"stop": 0.5}}}}
    (folder / "atelier.json").write_text(json.dumps(before))
    return folder


pytestmark = pytest.mark.timeout(1000)  # compiles dozens of programs


@pytest.fixture(scope="module")
def calibrated(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    prompts = folder.parent / "prompts.txt"
    prompts.write_text("a red circle\n\n  a star \n")
    more = ["--prompts", str(prompts), "--steps", str(STEPS), str(MORE_STEPS)]
    process = calibrate(folder, tmp_path_factory.mktemp("state"), *more)
    assert process.returncode == 0, process.stderr
    assert "| planned-" in process.stdout and "candidates were tried" in process.stdout
    return folder


def test_plans_are_found_and_every_preset_has_figures(calibrated: Path) -> None:
    presets = read_qualities(calibrated)
    planned = {name: preset for name, preset in presets.items() if name.startswith("planned-")}
    assert planned and {"mine", "first-block-cache", "fast"} <= presets.keys()
    for name, preset in presets.items():
        assert preset.measured is not None and preset.psnr_db is not None, name
        assert (preset.measured.steps, preset.measured.images) == (STEPS, 2)
        assert preset.measured.worst_db <= preset.psnr_db + 0.1
        assert "2 images" in preset.about and "jax" in preset.about
    assert all(preset.measured and preset.measured.operations < 1 for preset in planned.values())
    for preset in planned.values():
        assert isinstance(preset.step_cache, PlannedCache)
        assert preset.step_cache.step_counts == (STEPS, MORE_STEPS)
    assert presets["mine"].guidance == GuidanceInterval(stop=0.5)
    assert json.loads((calibrated / "atelier.json").read_text())["defaults"] == SMALL


def test_calibrated_preset_matches_its_recorded_figures(calibrated: Path) -> None:
    flux = registry.load("flux", str(calibrated), "float32", {})
    name = next(name for name in flux.spec.qualities if name.startswith("planned-"))
    near = [
        psnr_db(drawn(flux, prompt, seed, name), drawn(flux, prompt, seed, "exact"))
        for seed, prompt in enumerate(("a red circle", "a star"))
    ]
    measured = flux.spec.qualities[name].measured
    assert measured is not None and min(near) == pytest.approx(measured.worst_db, abs=ROUNDED_DB)


def drawn(flux: Any, prompt: str, seed: int, quality: str) -> Any:
    fields = {"prompt": prompt, "seed": seed, "quality": quality, "num_inference_steps": STEPS}
    prepared = flux.prepare({**flux.spec.defaults, **fields}, {})
    row = jax.jit(flux.encode)(flux.weights, dict(prepared.inputs))
    for step in prepared.steps:
        rows = jax.tree.map(lambda leaf: leaf[None], row)
        values = {key: jax.numpy.asarray(value)[None] for key, value in step.values.items()}
        after = jax.jit(flux.step, static_argnums=0)(step.program, flux.weights, rows, values)
        row = jax.tree.map(lambda leaf: leaf[0], after)
    return jax.device_get(jax.jit(flux.decode)(flux.weights, row))


def test_a_model_without_step_caches_has_nothing_to_plan(tmp_path: Path) -> None:
    process = calibrate(make_ltx(tmp_path / "ltx"), tmp_path / "state")
    assert process.returncode == EXIT_USAGE and "no step cache" in process.stderr


def test_a_file_without_a_prompt_is_refused(tmp_path: Path) -> None:
    (tmp_path / "none.txt").write_text("\n")
    process = calibrate(tmp_path, tmp_path / "state", "--prompts", str(tmp_path / "none.txt"))
    assert process.returncode == EXIT_USAGE and "no prompt" in process.stderr


def test_plans_of_an_earlier_calibration_are_dropped(tmp_path: Path) -> None:
    file = tmp_path / "atelier.json"
    plan = Quality(step_cache=PlannedCache(kind="planned", steps=2, whole=(0,)))
    mine = Quality(guidance=GuidanceInterval(stop=0.5))
    write_qualities(file, {"planned-2.00x": plan, "mine": mine})
    write_qualities(file, {"planned-3.00x": plan})
    assert read_qualities(tmp_path) == {"mine": mine, "planned-3.00x": plan}
    file.write_text("[]")
    with pytest.raises(CheckpointError, match="no presets can be written there"):
        write_qualities(file, {})
