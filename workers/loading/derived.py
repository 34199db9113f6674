"""Derived models: a base model with a LoRA adapter, fused into its weights or added at run time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from models.adapters.adaptable_layers import names_of
from models.adapters.files.adapter import AdapterError
from models.adapters.files.formats import read
from models.adapters.files.name_table import Names
from models.adapters.fuse import fusing
from models.checkpoint.folder import CheckpointError
from models.checkpoint.hub import resolve_file
from models.interface.pipeline import Pipeline
from models.spec.lora import Lora, RequestedLora, always
from models.spec.model_spec import DerivedModel, ModelSpec
from service.settings.loras import LoraSettings
from service.settings.models import ModelSettings
from service.settings.section import ConfigError
from service.settings.settings import Settings
from workers.loading.loras import ConfiguredLora, configured_lora, digest_of, refused
from workers.programs.aot_cache import Executables

NOT_INHERITED = {"base", "source"}
"""Settings of a derived model that do not override its base's."""


def whole_settings(settings: Settings, name: str) -> ModelSettings:
    """Return a model's settings; a model with a fused adapter inherits those of its base.

    Its own settings are the ones that differ from the defaults, because processes pass complete
    settings to each other.

    Raises: ConfigError: its base does not exist, or the base's workers serve it.
    """
    model = settings.models[name]
    if model.lora is None:
        return model
    base = settings.models.get(model.base or "")
    if base is None or base.lora is not None:
        raise ConfigError(f"models.{name}.base: name a model of [models] that has no lora itself")
    if not model.fuse:
        raise ConfigError(
            f"models.{name} is served by the workers of {model.base}: give it none of its own, or "
            "set fuse = true"
        )
    fields = ModelSettings.model_fields.items()
    update = {
        name: getattr(model, name)
        for name, field in fields
        if name not in NOT_INHERITED
        and getattr(model, name) != field.get_default(call_default_factory=True)
    }
    return base.model_copy(update=update | {"defaults": defaults_of(base) | defaults_of(model)})


def defaults_of(model: ModelSettings) -> dict[str, Any]:
    """Return the defaults of request fields, including the scheduler."""
    scheduler = {"scheduler": model.scheduler} if isinstance(model.scheduler, dict) else {}
    return {**model.defaults, **scheduler}


def derived_loras(
    settings: Settings, spec: ModelSpec, names: Names, facts: Executables
) -> dict[str, ConfiguredLora]:
    """Return the adapters of derived models that a base's workers serve, keyed by derived model.

    Args:
        names: names of the base's layers.
        facts: store of facts from earlier starts.
    """
    configured = {
        name: configured_lora(
            name, LoraSettings(source=model.lora or "", model=spec.name), spec, names, facts
        )
        for name, model in settings.models.items()
        if spec.lora_pages and model.is_served_by_base and model.base == spec.name
    }
    return {name: _adapter_only(adapter) for name, adapter in configured.items()}


def _adapter_only(configured: ConfiguredLora) -> ConfiguredLora:
    """Return an adapter; mark it unusable if it is an embedding, which no model consists of."""
    if not configured.lora.vectors:
        return configured
    return refused(configured, "it is an embedding, not an adapter; name it in [embeddings]")


def derived_models(
    settings: Settings, loras: Mapping[str, ConfiguredLora]
) -> tuple[DerivedModel, ...]:
    """Return the derived models of these adapters, without those that cannot be loaded."""
    usable = {name: adapter.lora for name, adapter in loras.items() if adapter.lora.error is None}
    return tuple(
        _described(name, settings.models[name], lora) for name, lora in sorted(usable.items())
    )


def _described(name: str, model: ModelSettings, lora: Lora) -> DerivedModel:
    resolved = RequestedLora(
        name=name,
        digest=lora.digest,
        pages=lora.pages,
        networks=lora.networks,
        scales=always(model.lora_scale),
        has_magnitudes=lora.has_magnitudes,
        is_reduced=lora.is_reduced,
    )
    return DerivedModel(name=name, defaults=defaults_of(model), loras=(resolved,))


def with_fused(model: ModelSettings, shapes: Pipeline, load: Callable[..., Pipeline]) -> Pipeline:
    """Load a model with its adapter merged into the weights.

    Args:
        shapes: the same model without weights.
        load: loads the model; accepts `fused`.

    Raises: CheckpointError: the adapter is unusable; any error of `load`.
    """
    path = resolve_file(model.lora or "", whole=True)
    try:
        adapter = read(path, names_of(shapes))
        pipeline = load(fused=fusing(adapter, model.lora_scale, shapes))
    except AdapterError as error:
        raise CheckpointError(f"{path}: {error}") from error
    identity = f"{pipeline.spec.fingerprint} {digest_of(path)} {model.lora_scale}"
    fingerprint = hashlib.sha256(identity.encode()).hexdigest()
    pipeline.spec = pipeline.spec.model_copy(update={"fingerprint": fingerprint})
    return pipeline
