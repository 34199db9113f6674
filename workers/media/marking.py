"""Marking of files: what is written into them beside the pixels, as the settings have it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from service.recipes.files import embed
from service.recipes.recipe import Recipe
from service.recipes.xmp import source_of
from service.settings.output import OutputSettings
from workers.media.content_credentials import Sign, signer_of


@dataclass(frozen=True)
class Marking:
    """Writes recipes into files, and signs them."""

    metadata: bool = True
    prompts: bool = True
    sign: Sign | None = None

    @classmethod
    def of_settings(cls, settings: OutputSettings) -> Marking:
        """Return what the settings ask for. Raises: ConfigError: it cannot be done."""
        return cls(settings.metadata, settings.prompts, signer_of(settings))

    def wants_recipe(self, request: Mapping[str, Any]) -> bool:
        """Return whether a resolved request's files hold their recipe."""
        return self.metadata and bool(request.get("output", {}).get("metadata", True))

    def mark(
        self, data: bytes, content_type: str, recipe: Recipe, request: Mapping[str, Any]
    ) -> bytes:
        """Return a file with its recipe, where that is wanted, and signed, where there is a key."""
        if self.wants_recipe(request):
            said = recipe if self.prompts else recipe.without_prompts()
            data = embed(data, content_type, said)
        return self.sign(data, content_type, source_of(recipe)) if self.sign else data
