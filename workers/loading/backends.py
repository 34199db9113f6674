"""Choice of what generates a model's images: JAX, or diffusers on torch. Imports neither."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal

from models import registry
from models.checkpoint.folder import CheckpointError, read_model_index
from models.checkpoint.hub import CONFIGS, resolve, single_file
from service.settings.installation import how_to_install
from service.settings.models import ModelSettings
from service.settings.pools import PoolSettings
from service.settings.section import ConfigError

Backend = Literal["native", "diffusers"]

PACKAGES = ("torch", "diffusers", "accelerate", "peft")
"""Packages of the extra `diffusers`."""
NATIVE_MODEL = (
    *("base", "lora", "fuse", "pipeline", "activation_dtype", "scheduler", "quality", "eight_bit"),
    *("image_prompts", "controls", "vae", "text_encoder", "text_encoder_2", "transformer_2"),
    *("refiner", "latent_upsampler", "swap_experts", "vae_tiling", "encoders_on_host"),
    *("exact_rows", "token_buckets"),
)
"""Settings of a model that diffusers cannot serve."""
NATIVE_POOL = (
    *("also", "by_turns", "hosts", "mesh", "table", "per_device_batch_size", "precision", "flags"),
    "batch_sizes",
)
"""Settings of a pool that hold for native models only."""


def backend_of(model: ModelSettings) -> Backend:
    """Return the backend that generates a model's images; `auto` reads its checkpoint's index.

    A checkpoint without a readable index counts as native, whose loader reports it.
    """
    if model.backend != "auto":
        return model.backend
    if model.lora or model.pipeline or single_file(model.source):
        return "native"
    try:
        index = read_model_index(resolve(model.source, patterns=CONFIGS))
    except (CheckpointError, OSError):
        return "native"
    return "native" if index["_class_name"] in registry.BY_PIPELINE else "diffusers"


def check(pool_name: str, pool: PoolSettings, model: ModelSettings) -> None:
    """Verify that diffusers is installed and can serve a model with these settings.

    Raises: ConfigError: names the package or the setting.
    """
    section = f"models.{pool.model}"
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        raise ConfigError(
            f"{section}: its pipeline has no native family, so it needs {missing[0]}, which is not "
            f"installed: {how_to_install('diffusers')}"
        )
    wrong = [f"{section}.{name}" for name in _changed(model, NATIVE_MODEL)]
    if model.batching == "fast":
        wrong.append(f"{section}.batching")
    if model.sizes == "listed":
        wrong.append(f"{section}.sizes")
    wrong += [f"pools.{pool_name}.{name}" for name in _changed(pool, NATIVE_POOL)]
    several = [name for name in ("slots", "devices") if (getattr(pool, name) or 1) > 1]
    wrong += [f"pools.{pool_name}.{name}" for name in several]
    if wrong:
        raise ConfigError(
            f"{', '.join(wrong)}: a diffusers model has no such setting: it generates one image at "
            "a time on one device, as its checkpoint is"
        )


def _changed(settings: ModelSettings | PoolSettings, names: tuple[str, ...]) -> list[str]:
    fields = type(settings).model_fields
    return [
        name
        for name in names
        if getattr(settings, name) != fields[name].get_default(call_default_factory=True)
    ]
