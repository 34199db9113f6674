"""Requests that each door takes: what attacks, fuzzing and layouts of keys begin with."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any

from models.spec.model_spec import ModelSpec
from service.jobs.model.job import Job
from tests.service.standin import MODEL, SPEC, VIDEO, StandIn, picture

PNG = picture(size=(64, 64))
IMAGE = base64.b64encode(PNG).decode()
A_VIDEO = "job_" + "a" * 24
"""Id of the job that is remixed (`with_a_video`)."""


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
    "/v1/videos": Asked(
        "/v1/videos",
        {
            "prompt": "a cat",
            "seconds": 1,
            "size": "64x64",
            "input_reference": {"image_url": IMAGE},
            "seed": 7,
        },
    ),
    "/v1/videos by a form": Asked(
        "/v1/videos", form={"prompt": "a cat", "seed": "7"}, files={"input_reference": PNG}
    ),
    "/v1/videos/{video_id}/remix": Asked(f"/v1/videos/{A_VIDEO}/remix", {"prompt": "a dog"}),
    "/v1/videos/generations": Asked(
        "/v1/videos/generations",
        {
            "prompt": "a cat",
            "size": "64x64",
            "seconds": 1.0,
            "fps": 8,
            "output_format": "mp4",
            "response_format": "video_bytes",
        },
    ),
    "/mcp": Asked(
        "/mcp",
        {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {
                "name": "edit_image",
                "arguments": {"prompt": "a", "image": IMAGE, "num_images": 1},
            },
        },
    ),
}
"""One good request of each operation that has a body; more of one by a word behind its path."""


def spec_of(name: str) -> ModelSpec:
    """The model that a request is for."""
    return VIDEO if name.startswith("/v1/videos") else SPEC


async def with_a_video(pool: StandIn) -> None:
    """Have a pool make the video that is remixed."""
    request = {
        **VIDEO.defaults,
        "model": VIDEO.name,
        "prompt": "a cat",
        "seed": 7,
        "num_images": 1,
        "output": {"format": "mp4", "quality": None, "inline": False},
    }
    job = Job(id=A_VIDEO, model=VIDEO.name, bucket=VIDEO.bucket(request), request=request, steps=4)
    await pool.queue.put(job)
    async for _ in pool.queue.events(A_VIDEO):
        pass
    pool.seen.clear()
