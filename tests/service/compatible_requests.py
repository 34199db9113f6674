"""Valid requests to each compatible endpoint, which tests of attacks, fuzzing and keys vary."""

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
"""Id of the job that the remix request names, created by `create_video_job`."""


@dataclass(frozen=True)
class ExampleRequest:
    """An HTTP request: a JSON body, or a form with files."""

    path: str
    json: dict[str, Any] | None = None
    form: dict[str, str] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)


EXAMPLE_REQUESTS: dict[str, ExampleRequest] = {
    "/hf/{model}": ExampleRequest(f"/hf/{MODEL}", {"inputs": "a cat", "parameters": {"seed": 7}}),
    "/hf/{model} of an image": ExampleRequest(
        f"/hf/{MODEL}", {"inputs": IMAGE, "parameters": {"prompt": "a cat"}}
    ),
    "/sdapi/v1/txt2img": ExampleRequest(
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
    "/sdapi/v1/img2img": ExampleRequest(
        "/sdapi/v1/img2img", {"prompt": "a", "init_images": [IMAGE], "denoising_strength": 0.5}
    ),
    "/sdapi/v1/options": ExampleRequest("/sdapi/v1/options", {"sd_model_checkpoint": MODEL}),
    "/sdapi/v1/png-info": ExampleRequest("/sdapi/v1/png-info", {"image": IMAGE}),
    "/v1/predictions": ExampleRequest(
        "/v1/predictions",
        {
            "version": f"atelier/{MODEL}",
            "input": {"prompt": "a", "num_outputs": 1, "output_format": "jpg", "image": IMAGE},
        },
    ),
    "/v1/models/{name}/predictions": ExampleRequest(
        f"/v1/models/atelier/{MODEL}/predictions", {"input": {"prompt": "a", "guidance": 3.5}}
    ),
    "/fal/queue/{app}": ExampleRequest(
        f"/fal/queue/fal-ai/{MODEL}",
        {
            "prompt": "a",
            "image_size": {"width": 64, "height": 64},
            "output_format": "jpeg",
            "image_url": IMAGE,
            "sync_mode": False,
        },
    ),
    "/fal/run/{app}": ExampleRequest(f"/fal/run/{MODEL}", {"prompt": "a", "seed": 7}),
    "/v1/images/generations": ExampleRequest(
        "/v1/images/generations",
        {"prompt": "a cat", "model": MODEL, "n": 1, "size": "64x64", "seed": 7},
    ),
    "/v1/images/edits": ExampleRequest(
        "/v1/images/edits", form={"prompt": "a cat", "n": "1"}, files={"image": PNG}
    ),
    "/v1/images/edits by JSON": ExampleRequest(
        "/v1/images/edits",
        {"prompt": "a cat", "images": [{"image_url": f"data:image/png;base64,{IMAGE}"}], "n": 1},
    ),
    "/v1/chat/completions": ExampleRequest(
        "/v1/chat/completions",
        {
            "model": MODEL,
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "a cat"},
                        {"type": "image_url", "image_url": {"url": f"data:;base64,{IMAGE}"}},
                    ],
                }
            ],
            "modalities": ["image", "text"],
            "n": 1,
            "seed": 7,
        },
    ),
    "/v1/responses": ExampleRequest(
        "/v1/responses",
        {
            "model": MODEL,
            "input": "a cat",
            "tools": [{"type": "image_generation", "size": "64x64"}],
            "stream": False,
        },
    ),
    "/v1/images/variations": ExampleRequest(
        "/v1/images/variations", form={"n": "1"}, files={"image": PNG}
    ),
    "/v1/videos": ExampleRequest(
        "/v1/videos",
        {
            "prompt": "a cat",
            "seconds": 1,
            "size": "64x64",
            "input_reference": {"image_url": IMAGE},
            "seed": 7,
        },
    ),
    "/v1/videos by a form": ExampleRequest(
        "/v1/videos", form={"prompt": "a cat", "seed": "7"}, files={"input_reference": PNG}
    ),
    "/v1/videos/{video_id}/remix": ExampleRequest(
        f"/v1/videos/{A_VIDEO}/remix", {"prompt": "a dog"}
    ),
    "/v1/videos/generations": ExampleRequest(
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
    "/mcp": ExampleRequest(
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
"""A valid request of each operation that has a body. Text after the path distinguishes variants."""


def spec_of(name: str) -> ModelSpec:
    """Specification of the model that a named request of `EXAMPLE_REQUESTS` uses."""
    return VIDEO if name.startswith("/v1/videos") else SPEC


async def create_video_job(pool: StandIn) -> None:
    """Run the video job that the remix request names."""
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
    pool.received.clear()
