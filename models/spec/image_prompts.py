"""Image prompts (IP-Adapter, Redux) in requests and model specs. No JAX.

An image prompt is an image that guides the content of the output, like text. Operators name the
networks that encode image prompts. Each image prompt of a request names a network and a scale.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

FIELD = "image_prompts"
"""Request field of image prompts."""


class ImagePrompt(BaseModel):
    """Network for image prompts, as listed in a model's spec."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    tokens: int = Field(gt=0)
    """Tokens that an image adds to the model's sequence."""
    summed: bool = False
    """Whether several images are summed into the tokens of one image; otherwise they are
    concatenated."""


class ImagePromptOptions(BaseModel):
    """Options of a request's image prompt, except its image."""

    model_config = ConfigDict(frozen=True)

    name: str | None = None
    """Name of the network that encodes the image; None: the only one."""
    scale: float = 1.0


def name_of(name: str | None, prompts: Mapping[str, ImagePrompt]) -> str | None:
    """Return the image prompt network that an entry names, or the only one; None: ambiguous."""
    return next(iter(prompts)) if name is None and len(prompts) == 1 else name


def tokens_of(
    entries: Iterable[Mapping[str, Any]], prompts: Mapping[str, ImagePrompt]
) -> dict[str, int]:
    """Return the number of tokens that a request's images add, by name; skips unknown names."""
    counts = Counter(name_of(entry.get("name"), prompts) for entry in entries)
    return {
        name: prompt.tokens * (1 if prompt.summed else counts[name])
        for name, prompt in sorted(prompts.items())
        if counts[name]
    }
