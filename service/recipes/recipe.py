"""Recipe of one image or video: all that it takes to make it again, and nothing of who asked.

It holds nothing that differs between two runs of a request, so that files stay the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from models.spec.hires import FIELD as HIRES
from models.spec.hires import passes
from models.spec.lora import RequestedLora
from models.spec.model_spec import ModelSpec
from models.spec.request_images import without_images
from models.spec.strength import denoising_steps
from models.spec.upscalers import upscaler_of

PRIVATE = frozenset({"webhook", "metadata", "priority", "deadline_s", "num_images", "reuse"})
"""Request fields that no recipe holds: of the client, not of the image. `seed` is the image's own,
so `num_images` would be wrong."""
PROMPTS = frozenset({"prompt", "negative_prompt", "prompt_2", "negative_prompt_2"})
"""Request fields that a recipe without prompts leaves out."""
OF_FILES = ("format", "quality")
"""Members of `output` that shape a file."""
NOT_IN_XML = str.maketrans({"\ufffe": "\\ufffe", "\uffff": "\\uffff"})
"""Characters that JSON may hold and XML may not, as JSON can write them, too."""


class Recipe(BaseModel):
    """Request as it was resolved, and what served it."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    recipe: int = 1
    """Version of this form."""
    generator: str
    """Program that made the file, with its version."""
    request: dict[str, Any]
    """Resolved fields with the image's own seed; a body for `POST /v1/generate`, to which input
    images have to be added."""
    fingerprint: str = ""
    """Name of what the model's checkpoint holds."""
    scheduler: str = ""
    """Name of the scheduler that ran, whether the request named it or not."""
    loras: dict[str, str] = Field(default_factory=dict)
    """SHA-256 of each adapter's file, by name."""
    upscaler: str | None = None
    """SHA-256 of the upscaler's file."""
    hires_upscaler: str | None = None
    """SHA-256 of the file of the upscaler between the passes of hires fix."""
    hires_steps: int | None = None
    """Steps that the second pass of hires fix runs, of those asked for."""
    drafted: dict[str, Any] | None = None
    """Fields of the request that its first steps were drawn with, a missing one null: it is a
    branch of a draft, which no single request draws."""
    images: dict[str, str] = Field(default_factory=dict)
    """SHA-256 of each input image's file, by its path in the request: `control.0.image`."""
    frame: int | None = None
    """Number of the frame, of a video in one file a frame."""

    def to_json(self) -> str:
        """Return it as JSON that XML can hold; the same recipe gives the same text."""
        fields = self.model_dump(exclude_none=True)
        return json.dumps(fields, sort_keys=True, ensure_ascii=False).translate(NOT_IN_XML)

    def of_frame(self, number: int) -> Recipe:
        """Return the recipe of one frame in a file of its own."""
        return self.model_copy(update={"frame": number})

    def without_prompts(self) -> Recipe:
        """Return it without what the client wrote."""
        kept, drafted = (
            {name: value for name, value in fields.items() if name not in PROMPTS}
            for fields in (self.request, self.drafted or {})
        )
        update = {"request": kept, "drafted": None if self.drafted is None else drafted}
        return self.model_copy(update=update)


def recipe_of(
    request: Mapping[str, Any],
    seed: int,
    spec: ModelSpec,
    loras: Iterable[RequestedLora] = (),
    images: Mapping[str, str] | None = None,
) -> Recipe:
    """Return the recipe of one image of a job.

    Args:
        request: as it was resolved.
        seed: the image's own.
        images: SHA-256 of its input images, by path.
    """
    kept, upscaler = repeatable(without_images(request)), upscaler_of(request, spec.upscalers)
    between = spec.upscalers.get((request.get(HIRES) or {}).get("upscaler", ""))
    return Recipe(
        generator=generator(),
        request={**kept, "seed": seed},
        fingerprint=spec.fingerprint,
        scheduler=kept.get("scheduler", {}).get("name") or spec.scheduler,
        loras={lora.name: lora.digest for lora in loras},
        upscaler=upscaler.digest if upscaler else None,
        hires_upscaler=between.digest if between else None,
        hires_steps=_hires_steps(request, spec),
        images=dict(images or {}),
    )


def repeatable(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a resolved request makes the same files again, its seed included."""
    kept = {
        name: value
        for name, value in request.items()
        if name not in PRIVATE and (value is not None or name == HIRES)  # there null means off
    }
    output = request.get("output", {})
    kept["output"] = {name: output[name] for name in OF_FILES if output.get(name) is not None}
    return kept


def _hires_steps(request: Mapping[str, Any], spec: ModelSpec) -> int | None:
    _, second = passes(request, spec)
    if second is None:
        return None
    strength = second.get("strength", 1.0)
    return denoising_steps(second["num_inference_steps"], strength, spec.strength_rounds)


@cache
def generator() -> str:
    """Return this program's name and version."""
    try:
        return f"atelier {version('atelier')}"
    except PackageNotFoundError:  # run from its sources
        return "atelier"
