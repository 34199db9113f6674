"""Image prompts as front ends and workers know them. No JAX in here: the front end imports it.

An image prompt is an image that says what to draw, as text does. Operators name the networks that
read such images; a request names one beside each image, with a scale.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

FIELD = "image_prompts"
"""Request field that holds them."""


class ImagePrompt(BaseModel):
    """Reading of images by one of a model's networks for them."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    tokens: int = Field(gt=0)
    """Tokens that one image adds to what the model reads."""
    summed: bool = False
    """True if several images are added up to the tokens of one; otherwise they lie side by side."""


def name_of(entry: Mapping[str, Any], known: Mapping[str, ImagePrompt]) -> str | None:
    """Return the name of an entry's image prompt; None: it says none, and there is not just one."""
    name: str | None = entry.get("name")
    return next(iter(known)) if name is None and len(known) == 1 else name


def tokens_of(
    entries: Iterable[Mapping[str, Any]], known: Mapping[str, ImagePrompt]
) -> dict[str, int]:
    """Return how many tokens a request's images add, by name; unknown names are left out."""
    counts = Counter(name_of(entry, known) for entry in entries)
    return {
        name: one.tokens * (1 if one.summed else counts[name])
        for name, one in sorted(known.items())
        if counts[name]
    }
