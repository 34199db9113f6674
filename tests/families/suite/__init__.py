"""Entries of the conformance suite, by family: small checkpoints, requests, a reference.

A family is a module of the same name. Its `ENTRIES` are the family and its variants: kinds of its
checkpoints with other inputs of the same network, named FAMILY-VARIANT.
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
from tests.families.suite.entry import SuiteEntry


def _collected() -> dict[str, SuiteEntry]:
    """Return the entries of all modules of this folder, by place."""
    modules = (
        import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)
    )
    entries = [entry for module in modules for entry in getattr(module, "ENTRIES", {}).items()]
    return dict(sorted(entries, key=lambda entry: entry[1].place))


EVERY: Mapping[str, SuiteEntry] = _collected()
SUITE: Mapping[str, SuiteEntry] = {name: entry for name, entry in EVERY.items() if "-" not in name}
"""Entries of the families themselves."""
VARIANTS: Mapping[str, SuiteEntry] = {name: EVERY[name] for name in EVERY if name not in SUITE}


def loaded(name: str, folder: Path, dtype: str, **how: Any) -> Pipeline:
    """Load a checkpoint of an entry, with its additional networks."""
    return registry.load(name, str(folder), dtype, {}, **beside(EVERY.get(name), folder), **how)


def settings_of(entry: SuiteEntry | None, folder: Path) -> dict[str, Any]:
    """Return a model's settings of the networks in addition to an entry's checkpoint.

    Args:
        entry: Entry, or None for a model without one.
    """
    if entry is None:
        return {}
    prompts, controls = entry.image_prompts.items(), entry.controls.items()
    return {
        "image_prompts": {name: {"source": str(folder / at)} for name, at in prompts},
        "controls": {
            name: {"source": str(folder / control.source), "mode": control.mode}
            for name, control in controls
        },
        "max_controls": entry.max_controls or 1,
        "refiner": entry.refiner and str(folder / entry.refiner),
    }


def beside(entry: SuiteEntry | None, folder: Path) -> dict[str, Any]:
    """Return the same networks as arguments of `registry.load`."""
    kinds: dict[str, Any] = {"image_prompts": ImagePromptSource, "controls": ControlSource}
    return {
        field: {name: kinds[field](**options) for name, options in setting.items()}
        if field in kinds
        else setting
        for field, setting in settings_of(entry, folder).items()
    }


def families() -> set[str]:
    """Return the names of all families in the registry."""
    return {family.name for family in registry.FAMILIES}


def images_of(name: str) -> Mapping[str, bytes]:
    """Return the images of every request of the suite to that model."""
    return EVERY[name].images if name in EVERY else {}
