"""Entries of the conformance suite, a family each: small checkpoints, requests, a reference.

A family is a module in here of the same name, whose `ENTRIES` are the family itself and variants:
kinds of its checkpoints with other inputs of the same network, named FAMILY-VARIANT.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from models import registry
from models.interface.pipeline import Pipeline
from models.loading.sources import ControlSource, ImagePromptSource
from tests.families.suite.entry import Family


def _collected() -> dict[str, Family]:
    """Return the entries of all modules in here, by place."""
    modules = (
        import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)
    )
    found = [entry for module in modules for entry in getattr(module, "ENTRIES", {}).items()]
    return dict(sorted(found, key=lambda entry: entry[1].place))


EVERY: Mapping[str, Family] = _collected()
SUITE: Mapping[str, Family] = {name: entry for name, entry in EVERY.items() if "-" not in name}
"""Families themselves."""
VARIANTS: Mapping[str, Family] = {name: EVERY[name] for name in EVERY if name not in SUITE}


def loaded(name: str, folder: Path, dtype: str, **how: Any) -> Pipeline:
    """Load a checkpoint of an entry, with what lies beside it."""
    return registry.load(name, str(folder), dtype, {}, **beside(EVERY.get(name), folder), **how)


def settings_of(entry: Family | None, folder: Path) -> dict[str, Any]:
    """Return what a model's settings say of the networks beside an entry's checkpoint.

    Args:
        entry: None: of a model that has none.
    """
    if entry is None:
        return {}
    prompts, controls = entry.image_prompts.items(), entry.controls.items()
    return {
        "image_prompts": {name: {"source": str(folder / at)} for name, at in prompts},
        "controls": {
            name: {"source": str(folder / one.source), "mode": one.mode} for name, one in controls
        },
        "max_controls": entry.max_controls or 1,
        "refiner": entry.refiner and str(folder / entry.refiner),
    }


def beside(entry: Family | None, folder: Path) -> dict[str, Any]:
    """Return the same, as `registry.load` is told it."""
    kinds: dict[str, Any] = {"image_prompts": ImagePromptSource, "controls": ControlSource}
    return {
        field: {name: kinds[field](**one) for name, one in said.items()} if field in kinds else said
        for field, said in settings_of(entry, folder).items()
    }


def families() -> set[str]:
    """The names of all that the registry serves."""
    return {module.split(".")[1] for module in registry.FAMILIES.values()}


def images_of(name: str) -> Mapping[str, bytes]:
    """Return the images that every request of the suite to that model has."""
    return EVERY[name].images if name in EVERY else {}
