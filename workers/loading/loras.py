"""LoRA adapters and embeddings of the settings, located and validated when a pool starts.

An unusable adapter does not prevent the start; it is listed with the reason.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from models.adapters.files.adapter import AdapterError
from models.adapters.files.formats import inspect
from models.adapters.files.name_table import Names
from models.adapters.files.peft_folder import folder_config
from models.checkpoint.folder import CheckpointError
from models.checkpoint.hub import resolve_file
from models.spec.lora import PAGE_RANK, Lora
from models.spec.model_spec import ModelSpec, line_of
from service.settings.loras import LoraSettings
from service.settings.settings import Settings
from workers.programs.aot_cache import Executables

log = logging.getLogger(__name__)

DEFAULT_PAGES = 16
"""Default pages of an adapter bank if the settings name adapters for the model."""
READER = "4"
"""Version of the facts of a file, which earlier starts stored."""
NO_EMBEDDING = "it is an adapter, not an embedding; name it in [loras] instead of [embeddings]"
SHORTEST_FINGERPRINT = 8
"""Minimum length of a fingerprint prefix that `model` of an adapter may use instead of a name."""


@dataclass(frozen=True)
class ConfiguredLora:
    """Adapter of the settings, and the result of its validation."""

    lora: Lora
    settings: LoraSettings
    path: Path | None
    """Path of its file; None: unusable."""


def default_pages(settings: Settings, model: str) -> int:
    """Return the default number of pages of a model; 0 if no adapter of the settings is for it."""
    adapter_models = (item.model for item in settings.loras.values())
    is_named = any(
        item in (model, line_of(model)) or item not in settings.models for item in adapter_models
    )
    others = (item.base for item in settings.models.values() if item.is_served_by_base)
    return DEFAULT_PAGES if is_named or model in others else 0


def configured_loras(
    settings: Settings, spec: ModelSpec, names: Names, facts: Executables
) -> dict[str, ConfiguredLora]:
    """Return the adapters and embeddings of the settings for a model, by name; log failures.

    Args:
        names: names of the model's layers.
        facts: store of facts from earlier starts.
    """
    loras = settings.loras if spec.lora_pages else {}
    embeddings = {name: entry.as_adapter() for name, entry in settings.embeddings.items()}
    configured = {
        name: configured_lora(name, adapter, spec, names, facts)
        for name, adapter in {**loras, **embeddings}.items()
        if is_for(adapter, spec)
    }
    return {
        name: refused(adapter, NO_EMBEDDING)
        if name in embeddings and adapter.path and not adapter.lora.vectors
        else adapter
        for name, adapter in configured.items()
    }


def refused(configured: ConfiguredLora, reason: str) -> ConfiguredLora:
    """Mark an adapter as unusable, and log the reason."""
    log.warning("%s cannot be used: %s", configured.lora.name, reason)
    lora = configured.lora.model_copy(update={"digest": "", "error": reason})
    return replace(configured, lora=lora, path=None)


def is_for(lora: LoraSettings, spec: ModelSpec) -> bool:
    """Return whether an adapter of the settings is for this model."""
    by_weights = len(lora.model) >= SHORTEST_FINGERPRINT and spec.fingerprint.startswith(lora.model)
    return lora.model in (spec.name, line_of(spec.name)) or by_weights


def configured_lora(
    name: str, settings: LoraSettings, spec: ModelSpec, names: Names, facts: Executables
) -> ConfiguredLora:
    """Return an adapter with the facts of its file; log the reason if it is unusable."""
    described: dict[str, Any] = {
        "name": name,
        "model": spec.name,
        "trigger": settings.trigger,
        "tenants": settings.tenants,
    }
    try:
        path = resolve_file(settings.source, whole=True)
        lora = Lora(**described, **_facts_of(path, settings, spec, names, facts))
        _check_room(lora, spec)
        for warning in lora.warnings:
            log.warning("the adapter %s: %s", name, warning)
        return ConfiguredLora(lora, settings, path)
    except (AdapterError, CheckpointError, OSError) as error:
        log.warning("the adapter %s cannot be used: %s", name, error)
        return ConfiguredLora(Lora(**described, digest="", error=str(error)), settings, None)


def _check_room(lora: Lora, spec: ModelSpec) -> None:
    """Verify that an adapter's rank fits an image's pages. Raises: AdapterError."""
    if lora.pages > spec.lora_pages:
        raise AdapterError(
            f"rank {lora.rank} takes {lora.pages} pages, and models.{spec.name}.lora_pages allows "
            f"{spec.lora_pages} an image"
        )


def _facts_of(
    path: Path, settings: LoraSettings, spec: ModelSpec, names: Names, facts: Executables
) -> Mapping[str, Any]:
    """Return digest, size, rank and networks of an adapter's file after validating all of it."""
    stat = path.stat()
    config = hashlib.sha256(folder_config(path)).hexdigest()
    identity = (str(path.resolve()), stat.st_size, stat.st_mtime_ns, settings.expert, config)

    def inspect_file() -> dict[str, Any]:
        ranks = PAGE_RANK * spec.lora_pages
        inspected = inspect(path, names, settings.expert, ranks or None)
        return {
            "digest": digest_of(path),
            "bytes": stat.st_size,
            "rank": inspected.rank,
            "networks": list(inspected.networks),
            "has_magnitudes": inspected.has_magnitudes,
            "is_reduced": inspected.is_reduced,
            "warnings": list(inspected.warnings),
            "vectors": inspected.vectors,
            "embeddings": dict(inspected.embeddings),
        }

    key = {
        "program": ["lora", READER, *map(str, identity), str(spec.lora_pages)],
        "model": spec.fingerprint,
    }
    return facts.fact(lambda: key, inspect_file)


def digest_of(path: Path) -> str:
    """Return the SHA-256 of an adapter's file and, of PEFT's folders, the config next to it."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    digest.update(folder_config(path))
    return digest.hexdigest()
