"""Derived models: a base with an adapter, fused or served by the base's workers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file

from models.adapters.adaptable_layers import names_of
from models.weights.loader import flat_parameters
from service.settings.models import ModelSettings
from service.settings.pools import PoolSettings
from service.settings.section import ConfigError
from service.settings.settings import Settings
from tests.parity.programs import Programs
from tests.workers.demo_adapters import DEMO, SCALE, adapter
from workers.loading import model as loading
from workers.loading.derived import (
    defaults_of,
    derived_loras,
    derived_models,
    whole_settings,
)
from workers.programs.aot_cache import NoExecutables

BASE = {"source": str(DEMO), "dtype": "float32", "defaults": {"num_inference_steps": 3}}


def settings(**fast: Any) -> Settings:
    models = {"base": ModelSettings(**BASE), "fast": ModelSettings(base="base", **fast)}
    return Settings(models=models, pools={"p": PoolSettings(model="fast")})


def test_fused_model_inherits_settings_of_its_base() -> None:
    result = whole_settings(
        settings(lora="x", fuse=True, defaults={"guidance_scale": 1.0}, dtype="float16"), "fast"
    )
    assert (result.source, result.dtype, result.lora) == (str(DEMO), "float16", "x")
    assert result.defaults == {"num_inference_steps": 3, "guidance_scale": 1.0}


@pytest.mark.parametrize(
    ("fast", "reason"),
    [
        ({"lora": "x"}, "is served by the workers of base"),
        ({"lora": "x", "fuse": True, "base": "none"}, "name a model of"),
    ],
)
def test_a_model_without_workers_or_base_is_refused(fast: Mapping[str, Any], reason: str) -> None:
    models = {"base": ModelSettings(**BASE), "fast": ModelSettings(**{"base": "base", **fast})}
    with pytest.raises(ConfigError, match=reason):
        whole_settings(Settings(models=models), "fast")


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ({}, "name the model's weights"),
        ({"lora": "x"}, "needs base, the name of another"),
        ({"lora": "x", "base": "b", "source": "s"}, "and no source"),
        ({"source": "s", "fuse": True}, "fuse requires a lora"),
        ({"lora": "x", "base": "b", "refiner": "r"}, "refiner: a model that its base's workers"),
        ({"lora": "x", "base": "b", "pipeline": "p"}, "pipeline: a model that its base's workers"),
        ({"lora": "x", "base": "b", "scheduler": "a/b"}, "scheduler: a model that its base's"),
        ({"lora": "x", "base": "b", "controls": {"c": "s"}}, "controls: .* set them there"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    model: Mapping[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        ModelSettings(**model)


@pytest.mark.parametrize(
    ("scheduler", "defaults", "parts"),
    [
        ("Euler a", {"scheduler": {"name": "Euler a"}}, {}),
        ({"name": "ddim", "eta": 1}, {"scheduler": {"name": "ddim", "eta": 1}}, {}),
        ("owner/name", {}, {"scheduler": "owner/name"}),
        ("scheduler_config.json", {}, {"scheduler": "scheduler_config.json"}),
        (None, {}, {}),
    ],
)
def test_a_scheduler_is_a_default_or_a_source(
    scheduler: Any, defaults: dict[str, Any], parts: dict[str, str]
) -> None:
    model = ModelSettings(source="s", scheduler=scheduler)
    assert (defaults_of(model), loading.parts_of(model)) == (defaults, parts)
    assert ModelSettings.model_validate(model.model_dump()) == model


def test_fused_model_may_add_networks() -> None:
    fused = ModelSettings(lora="x", base="b", fuse=True, controls={"c": {"source": "s", "mode": 3}})
    assert fused.controls["c"].mode == "3"


def loaded(config: Settings, name: str) -> Any:
    pool, model = loading.configured(config.model_copy(update={"pools": pools(name)}), "p")
    return loading.load("p", pool, model, jax.devices()[:1])[0]


def pools(name: str) -> dict[str, PoolSettings]:
    return {"p": PoolSettings(model=name)}


def kernel(pipeline: Any, name: str) -> np.ndarray:
    """Return a layer's kernel by its diffusers name."""
    named = names_of(pipeline).find(name)
    assert named is not None
    (place,) = named.layers
    module = nnx.merge(pipeline.graphs.transformer, pipeline.weights.transformer)
    return np.asarray(flat_parameters(module)[f"{place.path}.kernel"][...])[place.layer]


def test_a_fused_kernel_is_the_bases_and_the_product(tmp_path: Path) -> None:
    file = adapter(tmp_path / "a.safetensors", 1)
    config = settings(lora=str(file), lora_scale=SCALE, fuse=True)
    base, fused = loaded(config, "base"), loaded(config, "fast")
    arrays = load_file(file)
    for block in range(2):
        name = f"transformer.single_transformer_blocks.{block}.attn.to_v"
        down, up = (arrays[f"{name}.lora_{part}.weight"].astype(np.float64) for part in "AB")
        delta = kernel(fused, name).astype(np.float64) - kernel(base, name)
        expected = SCALE * (up @ down).T
        assert np.abs(expected).max() > 0.1
        np.testing.assert_allclose(delta, expected, atol=1e-5)  # a sum of four in float32
    assert base.spec.fingerprint != fused.spec.fingerprint
    fields = {**base.spec.defaults, "prompt": "two red circles", "seed": 5, "num_images": 1}
    programs, prepared = Programs(base), base.prepare(fields, {})
    image, other = (
        programs.drawn(prepared, model.weights)[1].astype(int) for model in (base, fused)
    )
    assert np.abs(image - other).mean() > 0.5


def test_a_fused_adapter_that_does_not_fit_stops_the_start(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    file.write_bytes(b"nothing")
    with pytest.raises(Exception, match="safetensors"):
        loaded(settings(lora=str(file), fuse=True), "fast")


def test_derived_models_are_described_and_broken_ones_skipped(tmp_path: Path) -> None:
    file = adapter(tmp_path / "a.safetensors", 1, rank=20)
    config = Settings(
        models={
            "base": ModelSettings(**BASE),
            "fast": ModelSettings(
                base="base", lora=str(file), lora_scale=0.5, defaults={"num_inference_steps": 1}
            ),
            "broken": ModelSettings(base="base", lora=str(tmp_path / "none.safetensors")),
            "apart": ModelSettings(base="base", lora=str(file), fuse=True),
        },
        pools=pools("base"),
    )
    pipeline = loaded(config, "base")
    assert pipeline.spec.lora_pages, "there is room for them without a setting"
    loras = derived_loras(config, pipeline.spec, names_of(pipeline), NoExecutables())
    (fast,) = derived_models(config, loras)
    assert (fast.name, fast.defaults) == ("fast", {"num_inference_steps": 1})
    (lora,) = fast.loras
    assert (lora.pages, lora.scale(0, 1)) == (2, 0.5)
    spec = pipeline.spec.model_copy(update={"derived": (fast,)})
    (variant,) = spec.variants()
    assert (variant.name, variant.queue, variant.fixed_loras) == ("fast", "base", (lora,))
    assert variant.defaults_for("text-to-image")["num_inference_steps"] == 1
