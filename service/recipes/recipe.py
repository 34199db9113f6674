"""Recipe of one image or video: all data needed to reproduce it, and no data about the client.

It contains nothing that differs between two runs of a request, so files stay identical.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import zip_longest
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from models.spec.hires import FIELD as HIRES
from models.spec.hires import passes
from models.spec.lora import RequestedLora
from models.spec.model_spec import ModelSpec
from models.spec.passes import denoising_steps
from models.spec.request_images import without_images
from models.spec.upscalers import upscaler_of

PRIVATE = frozenset(
    {"webhook", "metadata", "priority", "deadline_s", "draft_ttl_s", "num_images", "reuse"}
)
"""Request fields excluded from recipes, because they concern the client. `num_images` is excluded
because `seed` is the image's own."""
PROMPTS = frozenset({"prompt", "negative_prompt", "prompt_2", "negative_prompt_2"})
"""Request fields that a recipe without prompts omits."""
OF_FILES = ("format", "quality", "background")
"""Members of `output` that affect a file."""
DIGEST_CHARS = 8
"""Hexadecimal digits of a step's digest."""
NOT_IN_XML = str.maketrans({"\ufffe": "\\ufffe", "\uffff": "\\uffff"})
"""Escapes for characters that JSON allows and XML does not."""


class StepDifference(NamedTuple):
    """Result of comparing the latents of two generations of an image step by step."""

    at_step: int | None
    """First step, from 1, after which the latents differ; None: they are equal after each step."""
    steps: int
    """Number of steps of the second generation."""


class Recipe(BaseModel):
    """Resolved request, and the model, adapters and programs that served it."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    recipe: int = 1
    """Version of this format."""
    generator: str
    """Name and version of the program that made the file."""
    request: dict[str, Any]
    """Resolved fields with the image's own seed: a body for `POST /v1/generate`, except for input
    images."""
    fingerprint: str = ""
    """Fingerprint of the model's checkpoint."""
    scheduler: str = ""
    """Name of the scheduler that ran, including a default."""
    loras: dict[str, str] = Field(default_factory=dict)
    """SHA-256 of each adapter's file, by name."""
    embeddings: dict[str, str] | None = None
    """SHA-256 of the file of each embedding that the prompts name, by name."""
    upscaler: str | None = None
    """SHA-256 of the upscaler's file."""
    hires_upscaler: str | None = None
    """SHA-256 of the file of the upscaler between the passes of hires fix."""
    hires_steps: int | None = None
    """Number of steps that the second pass of hires fix ran."""
    drafted: dict[str, Any] | None = None
    """Request fields of its first steps that differ, null if missing then. The image continues a
    draft with changed fields, so no single request reproduces it."""
    step_digests: str | None = None
    """Digests of the latents after each step, 8 hexadecimal digits each. Equal images of the same
    programs have equal digests."""
    images: dict[str, str] = Field(default_factory=dict)
    """SHA-256 of each input image's file, by its path in the request: `control.0.image`."""
    frame: int | None = None
    """Frame number, for a video stored as one file per frame."""

    def to_json(self) -> str:
        """Serialize as JSON that XML can contain. Equal recipes give equal texts."""
        fields = self.model_dump(exclude_none=True)
        return json.dumps(fields, sort_keys=True, ensure_ascii=False).translate(NOT_IN_XML)

    def first_difference(self, other: Recipe) -> StepDifference | None:
        """Compare the digests of the steps; None if a recipe has none."""
        if not (self.step_digests and other.step_digests):
            return None
        texts = [
            [
                digests[start : start + DIGEST_CHARS]
                for start in range(0, len(digests), DIGEST_CHARS)
            ]
            for digests in (self.step_digests, other.step_digests)
        ]
        pairs = enumerate(zip_longest(*texts), 1)
        return StepDifference(next((step for step, (a, b) in pairs if a != b), None), len(texts[1]))

    def of_frame(self, number: int) -> Recipe:
        """Copy the recipe for one frame that is stored in its own file."""
        return self.model_copy(update={"frame": number})

    def without_prompts(self) -> Recipe:
        """Copy the recipe without prompts."""
        resolved, drafted = (
            {name: value for name, value in fields.items() if name not in PROMPTS}
            for fields in (self.request, self.drafted or {})
        )
        update = {"request": resolved, "drafted": None if self.drafted is None else drafted}
        return self.model_copy(update=update)


def recipe_of(
    request: Mapping[str, Any],
    seed: int,
    spec: ModelSpec,
    loras: Iterable[RequestedLora] = (),
    images: Mapping[str, str] | None = None,
) -> Recipe:
    """Build the recipe of one image of a job.

    Args:
        request: resolved fields.
        seed: the image's own.
        images: SHA-256 of its input images, by path.
    """
    adapters, embeddings = digests_of(loras)
    fields, upscaler = repeatable(without_images(request)), upscaler_of(request, spec.upscalers)
    between = spec.upscalers.get((request.get(HIRES) or {}).get("upscaler", ""))
    return Recipe(
        generator=generator(),
        request={**fields, "seed": seed},
        fingerprint=spec.fingerprint,
        scheduler=fields.get("scheduler", {}).get("name") or spec.scheduler,
        loras=adapters,
        embeddings=embeddings or None,
        upscaler=upscaler.digest if upscaler else None,
        hires_upscaler=between.digest if between else None,
        hires_steps=_hires_steps(request, spec),
        images=dict(images or {}),
    )


def step_digests(digests: Iterable[int]) -> str | None:
    """Format the 32-bit digests of an image's steps as text; None if there are none."""
    return "".join(f"{digest:0{DIGEST_CHARS}x}" for digest in digests) or None


def digests_of(loras: Iterable[RequestedLora]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the digests of adapters, and of embeddings, by name."""
    entries = [*loras]
    adapters = {entry.name: entry.digest for entry in entries if not entry.vectors}
    return adapters, {entry.name: entry.digest for entry in entries if entry.vectors}


def repeatable(request: Mapping[str, Any]) -> dict[str, Any]:
    """Select the resolved fields that determine the files, including the seed."""
    fields = {
        name: value
        for name, value in request.items()
        if name not in PRIVATE
        and (value is not None or name == HIRES)  # null switches hires fix off
    }
    output = request.get("output", {})
    fields["output"] = {name: output[name] for name in OF_FILES if output.get(name) is not None}
    return fields


def _hires_steps(request: Mapping[str, Any], spec: ModelSpec) -> int | None:
    _, second = passes(request, spec)
    if second is None:
        return None
    strength = second.get("strength", 1.0)
    return denoising_steps(second["num_inference_steps"], strength, spec.strength_rounds)


@cache
def generator() -> str:
    """Return this program's name and version, for recipes."""
    try:
        return f"atelier {version('atelier')}"
    except PackageNotFoundError:  # run from the source tree
        return "atelier"
