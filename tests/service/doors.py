"""Requests that each door takes: what attacks, fuzzing and layouts of keys begin with."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any

from tests.service.standin import MODEL, picture

PNG = picture(size=(64, 64))
IMAGE = base64.b64encode(PNG).decode()


@dataclass(frozen=True)
class Asked:
    """A request: a body in JSON, or a form with files."""

    path: str
    json: dict[str, Any] | None = None
    form: dict[str, str] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)


ASKED: dict[str, Asked] = {
    "/hf/{model}": Asked(f"/hf/{MODEL}", {"inputs": "a cat", "parameters": {"seed": 7}}),
    "/hf/{model} of an image": Asked(
        f"/hf/{MODEL}", {"inputs": IMAGE, "parameters": {"prompt": "a cat"}}
    ),
    "/sdapi/v1/txt2img": Asked(
        "/sdapi/v1/txt2img",
        {
            "prompt": "a cat",
            "seed": -1,
            "sampler_name": "Euler",
            "scheduler": "Simple",
            "override_settings": {"sd_model_checkpoint": MODEL, "sd_vae": "None"},
            "alwayson_scripts": {"ADetailer": {"args": [False]}},
            "styles": [],
        },
    ),
    "/sdapi/v1/img2img": Asked(
        "/sdapi/v1/img2img", {"prompt": "a", "init_images": [IMAGE], "denoising_strength": 0.5}
    ),
    "/sdapi/v1/options": Asked("/sdapi/v1/options", {"sd_model_checkpoint": MODEL}),
    "/sdapi/v1/png-info": Asked("/sdapi/v1/png-info", {"image": IMAGE}),
    "/v1/predictions": Asked(
        "/v1/predictions",
        {
            "version": f"atelier/{MODEL}",
            "input": {"prompt": "a", "num_outputs": 1, "output_format": "jpg", "image": IMAGE},
        },
    ),
    "/v1/models/{owner}/{name}/predictions": Asked(
        f"/v1/models/atelier/{MODEL}/predictions", {"input": {"prompt": "a", "guidance": 3.5}}
    ),
    "/fal/queue/{app}": Asked(
        f"/fal/queue/fal-ai/{MODEL}",
        {
            "prompt": "a",
            "image_size": {"width": 64, "height": 64},
            "output_format": "jpeg",
            "image_url": IMAGE,
            "sync_mode": False,
        },
    ),
    "/fal/run/{app}": Asked(f"/fal/run/{MODEL}", {"prompt": "a", "seed": 7}),
    "/v1/images/generations": Asked(
        "/v1/images/generations",
        {"prompt": "a cat", "model": MODEL, "n": 1, "size": "64x64", "seed": 7},
    ),
    "/v1/images/edits": Asked(
        "/v1/images/edits", form={"prompt": "a cat", "n": "1"}, files={"image": PNG}
    ),
    "/v1/images/variations": Asked("/v1/images/variations", form={"n": "1"}, files={"image": PNG}),
}
"""One good request of each operation that has a body; more of one by a word behind its path."""
