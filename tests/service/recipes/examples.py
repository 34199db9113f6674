"""Examples: a recipe with many fields, and files without a recipe."""

from __future__ import annotations

from typing import Any

import numpy as np

from models.spec.lora import RequestedLora, ScaleInterval
from service.recipes.recipe import Recipe, recipe_of
from tests.service.standin import SPEC
from workers.media.image import encode
from workers.media.video import encode_video

FILES = {
    "image/png": "png",
    "image/jpeg": "jpeg",
    "image/webp": "webp",
    "image/gif": "gif",
    "video/mp4": "mp4",
}
PIXELS = np.random.default_rng(0).integers(0, 256, (24, 40, 3), np.uint8)
REQUEST: dict[str, Any] = {
    "model": "flux-demo",
    "prompt": 'a fox, "red" & <tall>: é\n漢字 😀 \uffff',
    "negative_prompt": "grey,\nblurred",
    "width": 40,
    "height": 24,
    "num_inference_steps": 4,
    "guidance_scale": 3.5,
    "num_images": 3,
    "seed": 5,
    "strength": 0.6,
    "image": "jobs/job_1/inputs/image",
    "sigmas": None,
    "scheduler": {"name": "dpmpp_2m", "use_karras_sigmas": True},
    "loras": [{"name": "ink", "scale": 0.8}],
    "output": {"format": "png", "quality": None, "inline": True, "metadata": True},
    "priority": "high",
    "deadline_s": 60.0,
    "webhook": {"url": "https://example.org/hook?token=secret", "events": ["failed"]},
    "metadata": {"customer": "secret"},
}
LORA = RequestedLora(
    name="ink",
    digest="ab" * 32,
    pages=1,
    networks=("transformer",),
    scales=(ScaleInterval(start=0, stop=1, scale=0.8),),
)


def recipe(**fields: Any) -> Recipe:
    """Recipe of the second of three images."""
    return recipe_of({**REQUEST, **fields}, 6, SPEC, [LORA], {"image": "cd" * 32})


def bare(content_type: str, quality: int | None = None) -> bytes:
    """A file without metadata."""
    if content_type in ("video/mp4", "image/gif"):
        return encode_video(np.stack([PIXELS] * 5), FILES[content_type], 8)
    return encode(PIXELS, FILES.get(content_type, "png"), quality)
