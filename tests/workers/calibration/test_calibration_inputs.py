"""Models and preset files of a calibration: found or rejected before any weights are loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from models.checkpoint.folder import CheckpointError
from models.checkpoint.presets_file import FILE
from service.settings.section import ConfigError
from service.settings.settings import Settings
from workers.calibration.opened import CalibrationTarget, default_presets_path, opened, settings_of


def settings(**pools: Any) -> Settings:
    models = {name: {"source": f"/weights/{name}"} for name in ("flux", "sdxl", "wan")}
    return Settings.model_validate({"models": models, "pools": pools})


def test_calibration_finds_any_pool_that_serves_the_model() -> None:
    config = settings(
        first={"model": "flux", "by_turns": ["sdxl"], "slots": 2},
        second={"model": "sdxl", "slots": 1},
    )
    for pool_name, slots in ((None, 2), ("first", 2), ("second", 1)):
        pool, model = settings_of(config, CalibrationTarget("sdxl", pool_name))
        assert (pool.model, pool.models, pool.slots) == ("sdxl", ("sdxl",), slots)
        assert (model.source, model.lora_pages) == ("/weights/sdxl", 0)


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (None, "no pool of the settings serves wan"),
        ("first", "no pool first of the settings serves wan"),
    ],
)
def test_a_model_that_no_pool_serves(named: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings_of(settings(first={"model": "flux"}), CalibrationTarget("wan", named))


def refused(source: str, error: type[Exception], message: str, out: Path | None = None) -> None:
    """Check that the calibration is rejected before a checkpoint is loaded: these paths contain
    none."""
    target = CalibrationTarget(source)
    with pytest.raises(error, match=message), opened(Settings(), target, out):
        pass


@pytest.mark.parametrize("source", ["s3://bucket/flux", "gs://bucket/sdxl.safetensors"])
def test_no_file_is_written_to_an_object_store(source: str) -> None:
    refused(source, ConfigError, "object store; give --out FILE")


def test_single_file_needs_an_output_file(tmp_path: Path) -> None:
    file = tmp_path / "sdxl.safetensors"
    file.touch()
    refused(str(file), ConfigError, "single file; give --out FILE")


def test_folder_has_a_default_presets_path(tmp_path: Path) -> None:
    assert default_presets_path(str(tmp_path)) == tmp_path / FILE


def test_unwritable_output_is_rejected_and_existing_file_kept(tmp_path: Path) -> None:
    source = "s3://bucket/flux"
    for out in (tmp_path, tmp_path / "none" / "out.json"):
        refused(source, CheckpointError, "no presets can be written there", out)
    other = tmp_path / "other.json"
    other.write_text('{"quality": []}')
    refused(source, CheckpointError, "no presets can be written there", other)
    (tmp_path / FILE).write_text("[]")
    refused(str(tmp_path), CheckpointError, "no presets can be written there")
    assert sorted(tmp_path.iterdir()) == [tmp_path / FILE, other]
    assert other.read_text() == '{"quality": []}'
