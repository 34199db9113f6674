"""Time of trying a request out, reckoned before anything of it runs."""

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
from workers.pool.measuring import FEW_S
from workers.slice.chips import CHIPS

POOL = PoolSettings(model="flux")
LARGEST = {"width": 2048, "height": 2048}


def opened(flux_folder: Path, warmup: list[dict[str, Any]], devices: int = 1) -> list[float]:
    model = ModelSettings(source=str(flux_folder), dtype="float32", warmup=warmup)
    sketches, _, _ = loading.sketches_of(POOL, model)
    found = loading.open_slice("flux", POOL, model, sketches, jax.devices()[:devices])
    return list(found.trial_s)


def test_each_request_has_its_own(flux_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the rate of these cores: with one a thousand times lower it takes longer than few."""
    small, large = opened(flux_folder, [{"width": 64, "height": 64}, LARGEST])
    assert 0 < small < FEW_S and large > 50 * small
    assert opened(flux_folder, []) == []
    monkeypatch.setattr(trial_times, "flops_s", lambda device, dtype: 1e6)
    slow, slower = opened(flux_folder, [{"width": 64, "height": 64}, LARGEST])
    assert slow > small and slower > large
    assert slower > FEW_S


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
    one, four = (measured(jax.devices()[:count], "float32") for count in (1, 4))
    assert one.peak_flops == pytest.approx(4 * four.peak_flops)
    assert flops_s(jax.devices()[0], "float32") == one.peak_flops > 1e8


def test_a_model_of_long_videos_is_not_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Wan checkpoint without default sizes draws its family's own, on a machine of two cores."""
    monkeypatch.setattr(trial_times, "flops_s", lambda device, dtype: 1e11)
    folder = tmp_path / "wan"
    shutil.copytree(DEMO / "wan", folder, ignore=shutil.ignore_patterns("atelier.json"))
    (its_own,), (small,) = opened(folder, [{}]), opened(DEMO / "wan", [{}])
    assert small < FEW_S < its_own
