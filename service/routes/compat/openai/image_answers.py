"""Jobs as OpenAI's clients read the images of them.

Source: openai-python, src/openai/types/images_response.py.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import ConfigDict

from models.spec.hires import drawn_size
from models.spec.quality_presets import EXACT
from service.jobs.model.job import Job
from service.routes.compat.openai import examples
from service.routes.compat.openai.qualities import shown_quality
from service.schemas.examples import shown as shown_example
from service.schemas.response import View

PATCH_PX = 16
"""Side of what counts as a token of an image."""
CLIP_TOKENS = 77
"""Text tokens of models that take no other number."""


class InputTokensView(View):
    """Tokens of the request: of its texts, and of its image."""

    text_tokens: int
    """Text tokens that the model reads."""
    image_tokens: int
    """Tokens of the image that was sent."""


class TokensView(View):
    """Size of a request in OpenAI's unit: a token of an image is a square of 16 pixels."""

    input_tokens: int
    """Tokens of the request."""
    output_tokens: int
    """Tokens of the images."""
    total_tokens: int
    """Sum of the two."""
    input_tokens_details: InputTokensView
    """Parts of `input_tokens`."""


class ImageView(View):
    """An image of an answer."""

    b64_json: str | None = None
    """The file in base64."""
    url: str | None = None
    """A link to it that needs no key, and expires."""
    revised_prompt: str | None = None
    """Null: prompts are drawn as they are."""
    seed: int
    """Random seed; with it the same request gives the same image."""


class ImagesView(View):
    """Images of a job."""

    model_config = ConfigDict(json_schema_extra=shown_example(examples.IMAGES))

    created: int
    """Time of the job's end: seconds since the epoch."""
    data: list[ImageView]
    """Images in their order: number i has the seed + i."""
    background: Literal["opaque"] = "opaque"
    """Background of the images."""
    output_format: str
    """Format of the files."""
    quality: str
    """`low`, `medium` or `high`; `auto`: a preset that has no name there."""
    size: str
    """Width and height in pixels."""
    usage: TokensView
    """Size of the request in OpenAI's unit."""


def shown(job: Job, links: Sequence[str] = (), files: Sequence[bytes] = ()) -> ImagesView:
    """Return a job that has succeeded, with links to its outputs or with their bytes."""
    given: list[dict[str, Any]] = [{"url": link} for link in links]
    given = given or [{"b64_json": base64.b64encode(data).decode()} for data in files]
    data = [
        ImageView(seed=output.seed, **one) for output, one in zip(job.outputs, given, strict=True)
    ]
    return ImagesView(
        created=int(job.finished_at or job.created_at),
        data=data,
        usage=tokens_of(job, len(job.outputs)),
        **about(job),
    )


def about(job: Job) -> dict[str, str]:
    """Return what an answer and each event say of a job's images."""
    return {
        "size": "{}x{}".format(*drawn_size(job.request)),
        "quality": shown_quality(str(job.request.get("quality", EXACT))),
        "output_format": str(job.request["output"]["format"]),
    }


def tokens_of(job: Job, images: int) -> TokensView:
    """Return what so many images of a job count."""
    each = _tokens(*drawn_size(job.request))
    read = _tokens(job.request["width"], job.request["height"])
    text = int(job.request.get("max_sequence_length", CLIP_TOKENS))
    details = InputTokensView(text_tokens=text, image_tokens=read * ("image" in job.request))
    given = details.text_tokens + details.image_tokens
    return TokensView(
        input_tokens=given,
        output_tokens=images * each,
        total_tokens=given + images * each,
        input_tokens_details=details,
    )


def _tokens(width: int, height: int) -> int:
    return math.ceil(width / PATCH_PX) * math.ceil(height / PATCH_PX)
