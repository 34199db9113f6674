"""Estimated time of a request's trial, before any of its programs run."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from service.settings.models import ModelSettings
from service.settings.pools import PoolSettings
from tests.workers.plan.conftest import DEMO
from workers.loading import model as loading
from workers.loading import trial_times
from workers.loading.trial_times import flops_s, measured
from workers.pool.trials import SHORT_TRIAL_S
from workers.slice.chips import CHIPS

POOL = PoolSettings(model="flux")
LARGEST = {"width": 2048, "height": 2048}


def opened(flux_folder: Path, warmup: list[dict[str, Any]], devices: int = 1) -> list[float]:
    model = ModelSettings(source=str(flux_folder), dtype="float32", warmup=warmup)
    sketches, _, _ = loading.sketches_of(POOL, model)
    mesh_slice = loading.open_slice("flux", POOL, model, sketches, jax.devices()[:devices])
    for times in mesh_slice.estimated:
        assert times.encode_s + times.step_s + times.decode_s <= times.trial_s
        assert min(times.encode_s, times.step_s, times.decode_s) > 0
    return [times.trial_s for times in mesh_slice.estimated]


def test_each_request_has_its_own_trial_time(
    flux_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Estimates use the measured rate of these cores.

    At 1e6 FLOP/s a trial takes longer than `FEW_S`.
    """
    small, large = opened(flux_folder, [{"width": 64, "height": 64}, LARGEST])
    assert 0 < small < SHORT_TRIAL_S and large > 50 * small
    assert opened(flux_folder, []) == []
    monkeypatch.setattr(trial_times, "flops_s", lambda device, dtype: 1e6)
    slow, slower = opened(flux_folder, [{"width": 64, "height": 64}, LARGEST])
    assert slow > small and slower > large
    assert slower > SHORT_TRIAL_S


def test_rated_chips_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_nobody(device: jax.Device, dtype: str) -> float:
        raise AssertionError("nothing is to run there")

    class Rated:
        process_index, platform, device_kind = 0, "tpu", "TPU v6 lite"
        client = SimpleNamespace(runtime_type="pjrt_ifrt")

        def memory_stats(self) -> dict[str, int]:
            return {}

    monkeypatch.setattr(trial_times, "flops_s", of_nobody)
    devices: Any = [Rated()]
    assert measured(devices, "bfloat16") == CHIPS["v6e"]


def test_virtual_devices_share_the_cores() -> None:
    alone, shared = (measured(jax.devices()[:count], "float32") for count in (1, 4))
    assert alone.peak_flops == pytest.approx(4 * shared.peak_flops)
    assert flops_s(jax.devices()[0], "float32") == alone.peak_flops > 1e8


def test_a_model_of_long_videos_is_not_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without default sizes, a Wan checkpoint uses its family's: too long for two cores."""
    monkeypatch.setattr(trial_times, "flops_s", lambda device, dtype: 1e11)
    folder = tmp_path / "wan"
    shutil.copytree(DEMO / "wan", folder, ignore=shutil.ignore_patterns("atelier.json"))
    (its_own,), (small,) = opened(folder, [{}]), opened(DEMO / "wan", [{}])
    assert small < SHORT_TRIAL_S < its_own
