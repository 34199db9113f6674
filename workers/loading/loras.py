"""Adapters of the settings: found, checked and described when a pool starts.

One that cannot be used keeps no pool from starting: it is listed with the reason.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.adapters.files.adapter import AdapterError
from models.adapters.files.formats import inspect
from models.adapters.files.names import Names
from models.checkpoint.folder import CheckpointError
from models.checkpoint.hub import resolve_file
from models.spec.lora import Lora
from models.spec.model_spec import ModelSpec, line_of
from service.settings.loras import LoraSettings
from service.settings.settings import Settings
from workers.programs.aot_cache import Executables

log = logging.getLogger(__name__)

DEFAULT_PAGES = 16
"""Pages of a bank where adapters are named and nothing is said of room for them."""
SHORTEST_FINGERPRINT = 8
"""Characters by which a model's fingerprint is told from a name."""


@dataclass(frozen=True)
class ConfiguredLora:
    """Adapter of the settings as this pool has found it."""

    lora: Lora
    settings: LoraSettings
    path: Path | None
    """Path of its file; None: it cannot be used."""


def default_pages(settings: Settings, model: str) -> int:
    """Return the pages of a model whose settings do not say; 0 where no adapter may be for it."""
    named = (one.model for one in settings.loras.values())
    is_named = any(one in (model, line_of(model)) or one not in settings.models for one in named)
    others = (one.base for one in settings.models.values() if one.is_served_by_base)
    return DEFAULT_PAGES if is_named or model in others else 0


def configured_loras(
    settings: Settings, spec: ModelSpec, names: Names, facts: Executables
) -> dict[str, ConfiguredLora]:
    """Return the adapters that the settings have for a model, by name; logs those that fail.

    Args:
        names: of the model's layers.
        facts: what was found out at starts before.
    """
    own = {name: one for name, one in settings.loras.items() if is_for(one, spec)}
    return {name: found(name, one, spec, names, facts) for name, one in own.items()}


def is_for(lora: LoraSettings, spec: ModelSpec) -> bool:
    """Return whether the settings have an adapter for this model."""
    by_weights = len(lora.model) >= SHORTEST_FINGERPRINT and spec.fingerprint.startswith(lora.model)
    return lora.model in (spec.name, line_of(spec.name)) or by_weights


def found(
    name: str, settings: LoraSettings, spec: ModelSpec, names: Names, facts: Executables
) -> ConfiguredLora:
    """Return an adapter of a model with what is known of its file; logs why it cannot be used."""
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
        return ConfiguredLora(lora, settings, path)
    except (AdapterError, CheckpointError, OSError) as error:
        log.warning("the adapter %s cannot be used: %s", name, error)
        return ConfiguredLora(Lora(**described, digest="", error=str(error)), settings, None)


def _check_room(lora: Lora, spec: ModelSpec) -> None:
    """Raises: AdapterError: no image could have it."""
    if lora.pages > spec.lora_pages:
        raise AdapterError(
            f"rank {lora.rank} takes {lora.pages} pages, and models.{spec.name}.lora_pages allows "
            f"{spec.lora_pages} an image"
        )


def _facts_of(
    path: Path, settings: LoraSettings, spec: ModelSpec, names: Names, facts: Executables
) -> Mapping[str, Any]:
    """Return digest, size, rank and networks of a file that has been checked wholly."""
    stat = path.stat()
    identity = (str(path.resolve()), stat.st_size, stat.st_mtime_ns, settings.expert)

    def find() -> dict[str, Any]:
        found = inspect(path, names, settings.expert)
        return {
            "digest": digest_of(path),
            "bytes": stat.st_size,
            "rank": found.rank,
            "networks": list(found.networks),
        }

    key = {"program": ["lora", *map(str, identity)], "model": spec.fingerprint}
    return facts.fact(lambda: key, find)


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
