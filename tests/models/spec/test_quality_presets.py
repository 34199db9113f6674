"""Quality presets: validation, availability per model, and their effect on a plan of steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

import models.demo
from models.checkpoint.folder import CheckpointError, read_qualities
from models.interface.apply_presets import apply_optimizations, quality_of, with_presets
from models.interface.pipeline import Step
from models.interface.step_program import StepProgram
from models.spec.quality_presets import (
    CACHES,
    COEFFICIENTS,
    LONGEST_NAME,
    OPTIMIZATIONS,
    PRESETS,
    THRESHOLD,
    WEIGHTS,
    GuidanceInterval,
    Quality,
    StepCache,
    presets,
)
from models.spec.request import Request, RequestError, read_request
from models.spec.step_plan import PlannedCache
from tests.service.standin import SPEC

CACHED = Quality(step_cache=StepCache(kind="first-block", threshold=0.1))
FAST = Quality(
    guidance=GuidanceInterval(start=0.2, stop=0.6),
    step_cache=StepCache(kind="teacache", threshold=0.3, coefficients=(2.0, 1.0, 0.5)),
    eight_bit="w8a8",
)


def steps_of(count: int, network: str = "one") -> tuple[Step, ...]:
    program = StepProgram(network, guided=True)
    return tuple(Step(program, {"sigma": np.float32(i)}) for i in range(count))


def of_eight_bits(products: object) -> Quality:
    return Quality.model_validate({"eight_bit": products})


@pytest.mark.parametrize(
    ("start", "stop", "steps", "expected"),
    [
        (0.0, 1.0, 3, [0, 1, 2]),
        (0.0, 0.6, 16, range(9)),
        (0.2, 0.5, 10, [2, 3, 4]),
        (0.0, 0.0, 4, []),
    ],
)
def test_the_steps_of_an_interval(start: float, stop: float, steps: int, expected: object) -> None:
    """Fractions of steps are rounded down, as in diffusers' guiders."""
    guided = Quality(guidance=GuidanceInterval(start=start, stop=stop)).guided(steps)
    assert [i for i, is_guided in enumerate(guided) if is_guided] == list(expected)


def test_a_wrong_preset_is_refused() -> None:
    with pytest.raises(ValidationError, match="above stop"):
        GuidanceInterval(start=0.7, stop=0.5)
    with pytest.raises(ValidationError, match="threshold"):
        StepCache(kind="teacache", threshold=0)
    for invalid in (float("inf"), float("nan")):  # JSON supports neither
        with pytest.raises(ValidationError, match="threshold"):
            StepCache(kind="teacache", threshold=invalid)
        with pytest.raises(ValidationError, match="psnr_db"):
            Quality(psnr_db=invalid)
    with pytest.raises(ValidationError, match="extra"):
        Quality.model_validate({"eight_bits": True})
    with pytest.raises(ValidationError, match="'w8a16' or 'w8a8'"):
        Quality.model_validate({"eight_bit": "w4a16"})


@pytest.mark.parametrize(("before", "now"), [(True, "w8a8"), (False, None)])
def test_old_preset_with_an_eight_bit_flag_is_read(before: bool, now: object) -> None:
    """Old presets occur in settings, checkpoints and Redis. The current format round-trips."""
    preset = Quality.model_validate({"eight_bit": before})
    assert preset.eight_bit == now
    assert Quality.model_validate_json(preset.model_dump_json()) == preset


def test_exact_steps_are_unchanged() -> None:
    steps = steps_of(4)
    after = apply_optimizations(steps, Quality())
    assert [(s.program, dict(s.values)) for s in after] == [
        (s.program, dict(s.values)) for s in steps
    ]
    assert Quality().key == ""


def test_first_last_and_step_kind_changes_run_in_full() -> None:
    """After a change of expert, the cache would contain another expert's or other prompts'
    residuals.
    """
    steps = apply_optimizations(steps_of(4, "high") + steps_of(4, "low"), CACHED)
    thresholds = [float(step.values[THRESHOLD]) for step in steps]
    assert thresholds == pytest.approx([0, 0.1, 0.1, 0.1, 0, 0.1, 0.1, 0])
    (only_step,) = apply_optimizations(steps_of(1), CACHED)
    assert only_step.values[THRESHOLD] == 0


def test_optimizations_are_part_of_the_step_kind() -> None:
    ten = apply_optimizations(steps_of(10), FAST)
    assert [step.program for step in ten] == [
        StepProgram("one", guided=i in range(2, 6), quant="w8a8", cache="teacache")
        for i in range(10)
    ]
    assert ten[3].values[COEFFICIENTS].tolist() == [0, 0, 2, 1, 0.5]
    assert {frozenset(step.values) for step in ten} == {
        frozenset({"sigma", THRESHOLD, COEFFICIENTS})
    }


def test_thresholds_do_not_split_batches() -> None:
    other = Quality(step_cache=StepCache(kind="first-block", threshold=0.2))
    kinds = {preset.key for preset in (CACHED, *map(of_eight_bits, ("w8a16", "w8a8")), Quality())}
    assert CACHED.key == other.key and len(kinds) == 4


def test_the_presets_of_a_model() -> None:
    """Presets of the family, then of the folder, then of the operator, limited to the family's
    optimizations.
    """
    operators = {"fast": FAST, "eight-bit": Quality(eight_bit="w8a8", psnr_db=30)}
    by_name = presets(OPTIMIZATIONS, {"fast": CACHED}, operators)
    assert by_name["fast"] == FAST and by_name["eight-bit"].psnr_db == 30
    guided = presets({"guidance"})
    assert set(guided) == {"high", "fast", "guidance-interval"}
    assert (
        guided["fast"].optimizations == {"guidance"} < presets(OPTIMIZATIONS)["fast"].optimizations
    )
    with pytest.raises(ValueError, match=r'fast: uses eight_bit; .*eight_bit = "beside"'):
        presets(OPTIMIZATIONS - {"eight_bit"}, operators)
    with pytest.raises(ValueError, match=r"quality\.fast: uses step_cache; .*: eight_bit"):
        presets(OPTIMIZATIONS - {"step_cache"}, {"fast": FAST})
    with pytest.raises(ValueError, match=r"quality\.exact"):
        presets(OPTIMIZATIONS, {"exact": FAST})
    for name in ("", "\n", " fast", "x" * (LONGEST_NAME + 1)):
        with pytest.raises(ValueError, match="is not a valid name"):
            presets(OPTIMIZATIONS, {name: FAST})


def test_folder_defines_presets(tmp_path: Path) -> None:
    preset = {"eight_bit": True, "psnr_db": 31.5, "about": "ten images"}  # the old boolean form
    (tmp_path / "atelier.json").write_text(json.dumps({"quality": {"fast": preset}}))
    spec = with_presets(SPEC, tmp_path, OPTIMIZATIONS, {}, "beside")
    assert spec.qualities["fast"] == Quality.model_validate({**preset, "eight_bit": "w8a8"})
    assert spec.defaults["quality"] == "exact" and spec.bucket_fields[-1] == "quality"
    without = with_presets(SPEC, tmp_path, OPTIMIZATIONS, {}).qualities
    assert without["fast"] == PRESETS["fast"]
    assert not any(preset.eight_bit for preset in without.values())
    (tmp_path / "atelier.json").write_text('{"quality": {"fast": {"eight": true}}}')
    with pytest.raises(CheckpointError, match=r"(?s)atelier.json: quality: .*fast"):
        with_presets(SPEC, tmp_path, OPTIMIZATIONS, {})


def test_unknown_default_preset_is_rejected(tmp_path: Path) -> None:
    spec = SPEC.model_copy(update={"defaults": {**SPEC.defaults, "quality": "mine"}})
    with pytest.raises(ValueError, match="'mine' must be one of exact, high"):
        with_presets(spec, tmp_path, OPTIMIZATIONS, {})
    accepted = with_presets(spec, tmp_path, OPTIMIZATIONS, {"mine": FAST}, "beside")
    assert accepted.defaults["quality"] == "mine"


def test_rounded_weights_have_no_exact_preset(tmp_path: Path) -> None:
    """No `exact` and no preset that needs exact weights; the remaining presets use 8 bits."""
    spec = with_presets(SPEC, tmp_path, OPTIMIZATIONS, {"fast": FAST}, "instead")
    assert FAST.eight_bit and spec.quality_names == ("fast", "eight-bit-weights", "eight-bit")
    assert spec.defaults["quality"] == "eight-bit-weights" and not spec.has_exact
    with pytest.raises(
        RequestError, match="quality: 'exact' must be one of fast, eight-bit-weights, eight-b"
    ):
        quality_of(spec, "exact")
    with pytest.raises(
        ValueError, match=r'quality\.mine: needs exact weights.*"instead".*eight_bit = "w8a16"'
    ):
        with_presets(SPEC, tmp_path, OPTIMIZATIONS, {"mine": CACHED}, "instead")
    exact_by_default = SPEC.model_copy(update={"defaults": {**SPEC.defaults, "quality": "exact"}})
    with pytest.raises(ValueError, match="'exact' must be one of eight-bit-weights, eight-bit"):
        with_presets(exact_by_default, tmp_path, OPTIMIZATIONS, {}, "instead")


def test_a_request_names_a_preset() -> None:
    spec = SPEC.model_copy(update={"qualities": {"fast": FAST}})
    assert quality_of(spec, "fast") == FAST
    assert quality_of(spec, "exact") == Quality()
    with pytest.raises(RequestError, match="quality: 'slow' must be one of exact, fast"):
        quality_of(spec, "slow")


@pytest.mark.parametrize("default", ["exact", "fast"])
def test_a_job_of_an_earlier_version_is_exact(tmp_path: Path, default: str) -> None:
    """These jobs run and count as `exact`, regardless of the operator's current default."""
    operators = SPEC.model_copy(update={"defaults": {**SPEC.defaults, "quality": default}})
    spec = with_presets(operators, tmp_path, OPTIMIZATIONS, {"fast": FAST}, eight_bit="beside")
    fields = {"prompt": "a red circle", "seed": 1, **spec.defaults}
    assert fields.pop("quality") == default
    assert quality_of(spec, read_request(Request, fields).quality) == Quality()
    assert spec.bucket(fields) == spec.bucket({**fields, "quality": "exact"})
    assert spec.bucket(fields) != spec.bucket({**fields, "quality": "fast"})


@pytest.mark.parametrize("where", ["beside", "instead"])
def test_queued_eight_bit_job_keeps_its_admission_preset(tmp_path: Path, where: Any) -> None:
    """The current default is another preset; the job contains the preset of its admission."""
    spec = with_presets(SPEC, tmp_path, OPTIMIZATIONS, {}, where)
    assert quality_of(spec, "eight-bit").eight_bit == "w8a8"
    assert quality_of(spec, "eight-bit-weights").eight_bit == "w8a16"


@pytest.mark.parametrize("family", ["flux", "sdxl", "wan"])
def test_demo_presets_have_measured_figures(family: str) -> None:
    """They use the same optimizations as the family's presets of those names, except the planned
    ones.
    """
    presets_of_demo = read_qualities(Path(models.demo.__file__).parent / family)
    of_family = OPTIMIZATIONS - (CACHES if family == "sdxl" else set())
    for name, preset in presets_of_demo.items():
        assert preset.psnr_db, name
        assert "held-out prompts" in preset.about or preset.measured, name
        if name.startswith("planned-"):
            assert preset.cache == "planned" and preset.measured
            continue
        if name == "progressive":
            assert preset.optimizations == {"progressive"} and preset.measured
            continue
        assert preset.restricted_to(OPTIMIZATIONS) == PRESETS[name].restricted_to(of_family), name
    assert {"guidance-interval", "eight-bit-weights", "eight-bit"} <= presets_of_demo.keys()
    assert any(name.startswith("planned-") for name in presets_of_demo)


@pytest.mark.parametrize("guidance", [None, GuidanceInterval(stop=0.5)])
def test_later_steps_keep_the_optimizations_of_the_whole_image(guidance: Any) -> None:
    """Exception: the cache of the earlier steps has another size, so the first later step runs
    whole.
    """
    plan = PlannedCache(kind="planned", steps=8, whole=(0, 3, 6))
    signal = StepCache(kind="first-block", threshold=0.1)
    for cache in (plan, signal):
        quality = Quality(guidance=guidance, step_cache=cache)
        all_steps, later = (
            apply_optimizations(steps_of(8), quality),
            apply_optimizations(steps_of(6), quality, (), 2),
        )
        assert [step.program for step in later] == [step.program for step in all_steps[2:]]
        name = WEIGHTS if cache is plan else THRESHOLD
        skipped = [bool(np.any(step.values[name])) for step in later]
        expected = [bool(np.any(step.values[name])) for step in all_steps[2:]]
        assert skipped == [False, *expected[1:]] and any(skipped)


def test_unsupported_checkpoint_preset_is_dropped(tmp_path: Path) -> None:
    """The same preset from the operator is refused."""
    preset = {"progressive": {"scale": 0.5, "until": 0.5}}
    (tmp_path / "atelier.json").write_text(json.dumps({"quality": {"grows": preset}}))
    assert "grows" in with_presets(SPEC, tmp_path, OPTIMIZATIONS, {}).qualities
    edits = SPEC.model_copy(update={"fields": SPEC.fields - {"strength"}})
    assert "grows" not in with_presets(edits, tmp_path, OPTIMIZATIONS, {}).qualities
    with pytest.raises(ValueError, match=r"quality\.mine: uses progressive"):
        with_presets(edits, tmp_path, OPTIMIZATIONS, {"mine": Quality.model_validate(preset)})


PLAN = Quality(step_cache=PlannedCache(kind="planned", steps=4, whole=(0, 2)))
SIGNAL = Quality(step_cache=StepCache(kind="first-block", threshold=0.1))


def test_planned_caches_are_a_separate_optimization() -> None:
    """A UNet supports only planned caches: its first block does not predict the others."""
    unet = OPTIMIZATIONS - {"step_cache"}
    assert presets(unet, {"mine": PLAN})["mine"] == PLAN
    assert all(preset.cache is None for preset in presets(unet).values())
    with pytest.raises(ValueError, match=r"quality\.mine: uses step_cache; .* planned_cache"):
        presets(unet, {"mine": SIGNAL})
    with pytest.raises(
        ValueError, match=r"quality\.mine: uses planned_cache; this model supports: .* guid"
    ):
        presets(OPTIMIZATIONS - CACHES, {"mine": PLAN})
    combined = PLAN.model_copy(update={"guidance": GuidanceInterval(stop=0.5)})
    assert combined.restricted_to({"guidance"}) == Quality(guidance=combined.guidance)
    assert (
        combined.restricted_to({"planned_cache"}) == PLAN
        and SIGNAL.restricted_to({"planned_cache"}) == Quality()
    )
