"""Examples of OpenAI's bodies, for openapi.yaml."""

from __future__ import annotations

from service.schemas.examples import Example

_PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
)
_TOKENS = {"text_tokens": 64, "image_tokens": 0}
_USAGE = {
    "input_tokens": 64,
    "output_tokens": 16,
    "total_tokens": 80,
    "input_tokens_details": _TOKENS,
}
_ABOUT = {"background": "opaque", "output_format": "png", "quality": "high", "size": "64x64"}

REQUEST: Example = {
    "model": "flux-demo",
    "prompt": "a red circle on a blue background",
    "size": "64x64",
    "response_format": "b64_json",
    "num_inference_steps": 4,
    "seed": 7,
}
EDIT: Example = {
    "image": "@cat.png",
    "mask": "@mask.png",
    "prompt": "a red circle",
    "size": "64x64",
    "strength": 0.8,
}
VARIATION: Example = {"image": "@cat.png", "n": 1, "size": "64x64"}
IMAGES: Example = {
    "created": 1_769_860_801,
    "data": [{"b64_json": _PIXEL, "url": None, "revised_prompt": None, "seed": 7}],
    **_ABOUT,
    "usage": _USAGE,
}
EVENT: Example = {
    "type": "image_generation.completed",
    "b64_json": _PIXEL,
    "created_at": 1_769_860_801,
    **_ABOUT,
    "usage": _USAGE,
}
