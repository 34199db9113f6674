"""Choice between native models and diffusers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from service.settings.models import ModelSettings
from service.settings.pools import PoolSettings
from service.settings.section import ConfigError
from service.settings.settings import Settings
from workers.loading import backends, pool_models
from workers.loading.backends import backend_of, check


def source(folder: Path, class_name: str) -> str:
    """Return a checkpoint's folder of which only the index exists."""
    (folder / "model_index.json").write_text(json.dumps({"_class_name": class_name}))
    return str(folder)


@pytest.mark.parametrize(
    "class_name, chosen, backend",
    [
        ("FluxPipeline", "auto", "native"),
        ("StableDiffusionPipeline", "auto", "diffusers"),
        ("FluxPipeline", "diffusers", "diffusers"),
        ("StableDiffusionPipeline", "native", "native"),
    ],
)
def test_auto_is_native_where_the_family_is_served(
    tmp_path: Path, class_name: str, chosen: Any, backend: str
) -> None:
    model = ModelSettings(source=source(tmp_path, class_name), backend=chosen)
    assert backend_of(model) == backend


def test_single_files_are_native(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.touch()
    assert backend_of(ModelSettings(source=str(file))) == "native"


@pytest.mark.parametrize(
    "model, pool, named",
    [
        ({"batching": "fast"}, {}, "models.sd.batching"),
        ({"eight_bit": "instead"}, {}, "models.sd.eight_bit"),
        ({"controls": {"canny": "somewhere"}}, {}, "models.sd.controls"),
        (
            {"vae_tiling": True, "token_buckets": 0.1},
            {},
            "models.sd.vae_tiling, models.sd.token_buckets",
        ),
        ({}, {"also": ("other",)}, "pools.small.also"),
        ({}, {"slots": 4}, "pools.small.slots"),
        ({}, {"hosts": {"count": 2}}, "pools.small.hosts"),
    ],
)
def test_settings_of_native_models_are_refused(
    model: dict[str, Any], pool: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{named}: a diffusers model"):
        check("small", PoolSettings(model="sd", **pool), ModelSettings(source="a/folder", **model))


def test_defaults_and_adapters_are_accepted() -> None:
    model = ModelSettings(source="a/folder", lora_pages=4)
    check("small", PoolSettings(model="sd", slots=1), model)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "PACKAGES", ("no_such_torch",))
    with pytest.raises(ConfigError, match=r"needs no_such_torch.*\[diffusers\]"):
        check("small", PoolSettings(model="sd"), ModelSettings(source="a/folder"))


def test_settings_that_need_a_layout_reject_diffusers(tmp_path: Path) -> None:
    settings = Settings(
        models={"sd": ModelSettings(source=source(tmp_path, "StableDiffusionPipeline"))},
        pools={"sd": PoolSettings(model="sd")},
    )
    assert pool_models.diffusers_model(settings, "sd") is not None
    with pytest.raises(ConfigError, match="no layout"):
        pool_models.from_settings(settings, "sd")


def test_native_workers_import_no_torch() -> None:
    program = "import sys, workers.pool.process; print(sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert "'workers.pool.process'" in loaded
    assert [name for name in ("torch", "diffusers") if f"'{name}'" in loaded] == []
