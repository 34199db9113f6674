"""Examples of bodies, for openapi.yaml: what the demo's models are asked and answer."""

from __future__ import annotations

from typing import Any

from pydantic.config import JsonDict

Example = dict[str, Any]

_JOB_ID = "job_0f8a1c2d3e4b5a69"
_SHA256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"

GENERATE: Example = {
    "model": "flux-demo",
    "prompt": "a red circle on a blue background",
    "width": 64,
    "height": 64,
    "num_inference_steps": 4,
    "seed": 7,
    "metadata": {"shot": "12"},
}
JOB: Example = {
    "id": _JOB_ID,
    "object": "job",
    "state": "succeeded",
    "model": "flux-demo",
    "created_at": "2026-01-31T12:00:00.125Z",
    "started_at": "2026-01-31T12:00:00.250Z",
    "finished_at": "2026-01-31T12:00:01.500Z",
    "progress": {"step": 4, "steps": 4},
    "detail": None,
    "queue": {"position": None, "eta_s": None},
    "request": {**GENERATE, "num_images": 1, "output": {"format": "png", "inline": False}},
    "outputs": [
        {
            "index": 0,
            "url": f"/v1/jobs/{_JOB_ID}/outputs/0",
            "content_type": "image/png",
            "width": 64,
            "height": 64,
            "seed": 7,
            "sha256": _SHA256,
            "pixels_sha256": _SHA256[::-1],
            "bytes": 2048,
            "num_frames": None,
            "fps": None,
            "duration_s": None,
            "sound_hz": None,
        }
    ],
    "usage": {"steps": 4, "device_seconds": 1.2, "compile_seconds": 0.0, "queue_seconds": 0.125},
    "error": None,
    "warnings": [],
    "metadata": {"shot": "12"},
}
_WITHOUT_OUTPUTS: Example = {
    **JOB,
    "progress": {"step": 0, "steps": 4},
    "started_at": None,
    "outputs": [],
    "usage": {"steps": 0, "device_seconds": 0.0, "compile_seconds": 0.0, "queue_seconds": 0.0},
}
QUEUED_JOB: Example = {
    **_WITHOUT_OUTPUTS,
    "state": "queued",
    "finished_at": None,
    "queue": {"position": 3, "eta_s": 4.2},
}
CANCELED_JOB: Example = {**_WITHOUT_OUTPUTS, "state": "canceled"}
JOBS: Example = {"object": "list", "data": [JOB], "has_more": True, "next": _JOB_ID}

MODEL: Example = {
    "id": "flux-demo",
    "object": "model",
    "created": 0,
    "owned_by": "atelier",
    "name": "flux-demo",
    "family": "flux",
    "tasks": ["text-to-image", "image-to-image"],
    "fields": ["guidance_scale", "height", "num_inference_steps", "prompt", "seed", "width"],
    "needed": [],
    "strength_needs": "image",
    "needs": {},
    "limits": {
        "size_multiple_px": 16,
        "min_side_px": 32,
        "max_side_px": 256,
        "max_pixels": 16384,
        "max_frames": 1,
        "min_frames": 1,
        "frames_multiple": 1,
        "max_steps": 50,
        "max_images": 4,
        "max_sequence_length": 128,
        "max_clip_skip": 0,
        "max_reference_images": 0,
        "conditioning_scales": 0,
        "max_image_prompts": 0,
        "max_controls": 0,
        "max_clip_pixels": 16384,
        "max_upscaled_pixels": 67_108_864,
        "max_prompt_chars": 8000,
        "max_loras": 8,
    },
    "defaults": {"width": 64, "height": 64, "num_inference_steps": 4, "guidance_scale": 3.5},
    "task_defaults": {"image-to-image": {"strength": 0.6}},
    "schedulers": {"euler": {"shift": {"kind": "number", "minimum": 0}}},
    "qualities": {},
    "image_prompts": {},
    "controls": {},
    "upscalers": {"photo": {"scale": 4, "tile": 256, "digest": _SHA256}},
    "has_exact": True,
    "base": None,
    "batching": {"mode": "exact", "levels": None},
    "sizes": {"mode": "any", "listed": []},
    "sound_hz": None,
    "max_lora_rank": 128,
    "pools": ["flux"],
    "ready": True,
}
MODELS: Example = {"object": "list", "data": [MODEL]}

LORA: Example = {
    "name": "ink",
    "object": "lora",
    "model": "flux-demo",
    "origin": "upload",
    "trigger": "in ink",
    "rank": 16,
    "networks": ["transformer"],
    "bytes": 1_048_576,
    "digest": _SHA256,
    "preview": "/v1/loras/ink/preview",
    "ready": True,
    "error": None,
}
LORAS: Example = {"object": "list", "data": [LORA]}
UPLOAD: Example = {
    "name": "ink",
    "model": "flux-demo",
    "trigger": "in ink",
    "file": "(the safetensors file)",
}

PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
)
"""PNG of one red pixel, in base64."""
HEALTH: Example = {"status": "ok"}
EVENTS = (
    'id: 1-0\nevent: queued\ndata: {"id": "job_0f8a1c2d3e4b5a69"}\n\n'
    'id: 3-0\nevent: progress\ndata: {"id": "job_0f8a1c2d3e4b5a69", "step": 2, "steps": 4}\n\n'
)
METRICS = (
    "# HELP atelier_connections Open client connections.\n"
    "# TYPE atelier_connections gauge\n"
    "atelier_connections 3.0\n"
)


def shown(example: Example) -> JsonDict:
    """Return the `json_schema_extra` of a body's class that gives it an example."""
    return {"examples": [example]}
