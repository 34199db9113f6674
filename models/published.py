"""Published checkpoints of all families by short name, for planning without a download.

Source: the `-Diffusers` repositories of Black Forest Labs, Stability AI, Qwen, Tongyi-MAI and
Wan-AI, and the conversion of Lightricks' checkpoint. Values that do not shape networks (a shift, a
beta) are also as published.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from models.interface.family import PublishedCheckpoint
from models.registry import FAMILIES

CHECKPOINTS: Mapping[str, PublishedCheckpoint] = {
    name: checkpoint for family in FAMILIES for name, checkpoint in family.published.items()
}
"""Published checkpoints by the names that `atelier plan --model` accepts."""

NOTHING = PublishedCheckpoint({})


def write(name: str, folder: Path) -> None:
    """Write a published checkpoint's config files to a folder. Raises: KeyError: unknown name."""
    for path, config in CHECKPOINTS[name].files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(config))


def image_prompts(name: str, folder: Path) -> dict[str, str]:
    """Return the sources of a written checkpoint's image prompt networks.

    Args:
        name: of a checkpoint; unknown names yield none.
    """
    networks = CHECKPOINTS.get(name, NOTHING).image_prompts
    return {network: str(folder / path) for network, path in networks.items()}


def controls(name: str, folder: Path) -> dict[str, dict[str, str]]:
    """Return the sources and modes of a written checkpoint's ControlNets.

    Args:
        name: of a checkpoint; unknown names yield none.
    """
    by_kind = CHECKPOINTS.get(name, NOTHING).controls
    return {
        kind: {**options, "source": str(folder / options["source"])}
        for kind, options in by_kind.items()
    }


def refiner(name: str, folder: Path) -> str | None:
    """Return the source of a written checkpoint's refiner; None: no refiner."""
    path = CHECKPOINTS.get(name, NOTHING).refiner
    return None if path is None else str(folder / path)
