"""Upscalers of a pool: loaded once for all of its models, and included in the plan of its slice."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import pytest
from flax import nnx

from models.upscale.load import load_upscaler
from service.settings.models import ModelSettings, UpscalerSettings
from service.settings.pools import PoolSettings
from service.settings.section import ConfigError
from service.settings.settings import Settings
from tests.parity.torch_rrdbnet import net, write
from tests.workers.flux import REQUEST, tuned
from tests.workers.toy import ToyPipeline
from tests.workers.upscaler import CONFIG
from workers.loading import pool_models
from workers.loading.upscalers import (
    UpscalerCache,
    bytes_of,
    load_upscalers,
    upscaler_bytes,
    upscalers_for,
)

SIZE = {name: REQUEST[name] for name in ("width", "height", "max_sequence_length")}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(net(CONFIG), tmp_path_factory.mktemp("upscaler") / "twice.safetensors")


def settings(file: Path, **upscalers: dict[str, Any]) -> Settings:
    named = {
        name: UpscalerSettings.model_validate({"source": str(file), **options})
        for name, options in upscalers.items()
    }
    return Settings(models={"toy": ModelSettings(source="x")}, upscalers=named)


def test_models_of_a_pool_share_a_loaded_upscaler(file: Path) -> None:
    """Two names may share an upscaler.

    Other tiles or another precision make a separate upscaler.
    """
    device, cache = jax.devices()[0], UpscalerCache()
    of_both = settings(file, one={"tile": 32}, same={"tile": 32}, other={"tile": 64})
    first, second = (load_upscalers(of_both, ToyPipeline(), device, cache) for _ in range(2))
    assert first["one"] is first["same"] is second["one"]
    assert first["one"] is not first["other"]
    assert len(cache) == 2


def test_a_name_that_hires_fix_has_is_refused(file: Path) -> None:
    for name in ("latent", "lanczos"):
        with pytest.raises(ConfigError, match=rf"upscalers\.{name}: hires fix has one"):
            upscalers_for(settings(file, **{name: {}}), ToyPipeline.spec)


def test_memory_of_an_upscaler_is_known_before_loading(file: Path) -> None:
    loaded = load_upscaler(file, "float32", 32, jax.devices()[0])
    loaded_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(nnx.state(loaded.network)))
    weights, tile = bytes_of(file, "float32", 32)
    assert weights == loaded_bytes
    assert bytes_of(file, "bfloat16", 32)[0] == weights // 2
    feature_bytes = 4 * (32 * loaded.spec.scale) ** 2 * CONFIG.features
    assert feature_bytes <= tile <= 8 * feature_bytes, (
        "features of the enlarged tile, and little beside them"
    )
    assert bytes_of(file, "float32", 64)[1] == 4 * tile


def test_a_plan_leaves_room_for_upscalers(
    file: Path, flux_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Memory is reserved once for all models of a pool, each of which then has fewer slots."""
    other = tuned(flux_folder, tmp_path_factory.mktemp("others") / "tuned")
    sources = {"flux": flux_folder, "tuned": other}
    models = {
        name: ModelSettings(source=str(folder), dtype="float32", defaults=SIZE)
        for name, folder in sources.items()
    }

    def models_of(*also: str) -> list[pool_models.PoolModel]:
        pools = {"p": PoolSettings(model="flux", also=also, slots=2**40)}
        return pool_models.from_settings(Settings(models=models, pools=pools), "p")

    named = {"one": UpscalerSettings(source=str(file), tile=32)}
    with_upscaler = Settings(models=models, upscalers=named)
    needed = upscaler_bytes(with_upscaler, models_of())
    assert needed == sum(bytes_of(file, named["one"].dtype, 32))
    assert upscaler_bytes(with_upscaler, models_of("tuned")) == needed
    assert upscaler_bytes(Settings(models=models), models_of()) == 0

    def fitting(extra_bytes: int, *also: str) -> int:
        with pytest.raises(ConfigError, match="slots are too many") as refused:
            pool_models.plan_slices(
                "p", models_of(*also), jax.devices()[:1], extra_bytes=extra_bytes
            )
        match = re.search(r"(\d+) fit", str(refused.value))
        assert match
        return int(match[1])

    for also in ((), ("tuned",)):
        assert 0 < fitting(2**28, *also) < fitting(0, *also)
