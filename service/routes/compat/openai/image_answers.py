"""Conversion of a job to OpenAI's images response.

Source: openai-python, src/openai/types/images_response.py.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Any

from pydantic import ConfigDict

from models.spec.hires import generated_size
from models.spec.output_options import Background
from models.spec.quality_presets import EXACT
from service.jobs.model.job import FieldWarning, Job
from service.routes.compat.openai import examples
from service.routes.compat.openai.field_values import openai_quality
from service.schemas.examples import schema_example as shown_example
from service.schemas.response import View

PATCH_PX = 16
"""Side in pixels of the square that counts as one image token."""
CLIP_TOKENS = 77
"""Text tokens of models without `max_sequence_length`."""


class InputTokensView(View):
    """Input token counts in OpenAI's format: of the texts, and of the input image."""

    text_tokens: int
    """Text tokens that the model reads."""
    image_tokens: int
    """Tokens of the input image."""


class TokensView(View):
    """Token counts in OpenAI's format: an image token is a square of 16 x 16 pixels."""

    input_tokens: int
    """Tokens of the request."""
    output_tokens: int
    """Tokens of the output images."""
    total_tokens: int
    """Sum of both."""
    input_tokens_details: InputTokensView
    """Parts of `input_tokens`."""


class ImageView(View):
    """Image of a response in OpenAI's format."""

    b64_json: str | None = None
    """The file in base64."""
    url: str | None = None
    """Signed link that needs no key, and expires."""
    revised_prompt: str | None = None
    """Always null: prompts are not revised."""
    seed: int
    """Random seed; with this seed the same request generates the same image."""


class ImagesView(View):
    """Images of a job in OpenAI's format."""

    model_config = ConfigDict(json_schema_extra=shown_example(examples.IMAGES))

    created: int
    """Time when the job ended: seconds since the epoch."""
    data: list[ImageView]
    """Images in order: image i has seed `seed + i`."""
    background: Background = "opaque"
    """Background of the images."""
    output_format: str
    """Format of the files."""
    quality: str
    """`low`, `medium` or `high`; `auto` for presets without an OpenAI name."""
    size: str
    """Width and height in pixels."""
    usage: TokensView
    """Token counts of the request."""
    warnings: list[FieldWarning]
    """Fields that were not used as written, or had no effect."""


def to_images_view(job: Job, links: Sequence[str] = (), files: Sequence[bytes] = ()) -> ImagesView:
    """Convert a successful job to OpenAI's images, with links or with the files' bytes."""
    sources: list[dict[str, Any]] = [{"url": link} for link in links]
    sources = sources or [{"b64_json": base64.b64encode(data).decode()} for data in files]
    data = [
        ImageView(seed=output.seed, **source)
        for output, source in zip(job.outputs, sources, strict=True)
    ]
    return ImagesView(
        created=int(job.finished_at or job.created_at),
        data=data,
        usage=tokens_of(job, len(job.outputs)),
        warnings=job.warnings,
        **image_properties(job),
    )


def image_properties(job: Job) -> dict[str, Any]:
    """Return the image properties that the response and each event contain."""
    return {
        "size": "{}x{}".format(*generated_size(job.request)),
        "quality": openai_quality(str(job.request.get("quality", EXACT))),
        "output_format": str(job.request["output"]["format"]),
        "background": job.request["output"].get("background") or "opaque",
    }


def tokens_of(job: Job, images: int) -> TokensView:
    """Count a job's tokens in OpenAI's sense, for this number of output images."""
    image_tokens = _tokens(*generated_size(job.request))
    input_image = _tokens(job.request["width"], job.request["height"])
    text = int(job.request.get("max_sequence_length", CLIP_TOKENS))
    details = InputTokensView(text_tokens=text, image_tokens=input_image * ("image" in job.request))
    input_tokens = details.text_tokens + details.image_tokens
    return TokensView(
        input_tokens=input_tokens,
        output_tokens=images * image_tokens,
        total_tokens=input_tokens + images * image_tokens,
        input_tokens_details=details,
    )


def _tokens(width: int, height: int) -> int:
    return math.ceil(width / PATCH_PX) * math.ceil(height / PATCH_PX)
