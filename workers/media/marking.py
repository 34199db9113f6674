"""Marking of files: what is written into them beside the pixels, as the settings have it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from service.recipes.files import embed
from service.recipes.recipe import Recipe
from service.settings.output import OutputSettings


@dataclass(frozen=True)
class Marking:
    """Writes recipes into files."""

    metadata: bool = True
    prompts: bool = True

    @classmethod
    def of_settings(cls, settings: OutputSettings) -> Marking:
        """Return what the settings ask for."""
        return cls(settings.metadata, settings.prompts)

    def wants_recipe(self, request: Mapping[str, Any]) -> bool:
        """Return whether a resolved request's files hold their recipe."""
        return self.metadata and bool(request.get("output", {}).get("metadata", True))

    def mark(self, data: bytes, content_type: str, recipe: Recipe | None) -> bytes:
        """Return a file with its recipe; None: as it is."""
        if recipe is None:
            return data
        return embed(data, content_type, recipe if self.prompts else recipe.without_prompts())
