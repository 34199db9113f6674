"""Marking of output files, by the settings: embedded recipes and signatures."""

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
    """Marking of output files: embeds recipes, and signs with Content Credentials."""

    metadata: bool = True
    prompts: bool = True
    sign: Sign | None = None

    @classmethod
    def of_settings(cls, settings: OutputSettings) -> Marking:
        """Return the marking of the settings. Raises: ConfigError: unusable key or certificates."""
        return cls(settings.metadata, settings.prompts, signer_of(settings))

    def wants_recipe(self, request: Mapping[str, Any]) -> bool:
        """Return whether a resolved request's files contain their recipe."""
        return self.metadata and bool(request.get("output", {}).get("metadata", True))

    def mark(
        self, data: bytes, content_type: str, recipe: Recipe, request: Mapping[str, Any]
    ) -> bytes:
        """Return a file with its recipe, if enabled, and signed, if a key is configured."""
        if self.wants_recipe(request):
            embedded = recipe if self.prompts else recipe.without_prompts()
            data = embed(data, content_type, embedded)
        return self.sign(data, content_type, source_of(recipe)) if self.sign else data
