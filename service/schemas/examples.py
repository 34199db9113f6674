"""Example bodies for openapi.yaml: requests and responses of the demo models."""

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
CONTINUE: Example = {"images": [3, 7], "output": {"format": "png"}}
MADE_BY: Example = {
    "checkpoint": _SHA256,
    "platform": "tpu",
    "chip": "v6e",
    "layout": "cfg=2,tensor=4",
    "jax": "0.8.1",
    "programs": _SHA256[::-1],
}
JOB: Example = {
    "id": _JOB_ID,
    "object": "job",
    "state": "succeeded",
    "model": "flux-demo",
    "served_by": "flux-demo",
    "model_fingerprint": _SHA256,
    "created_at": "2026-01-31T12:00:00.125Z",
    "started_at": "2026-01-31T12:00:00.250Z",
    "finished_at": "2026-01-31T12:00:01.500Z",
    "expires_at": "2026-02-01T12:00:01.500Z",
    "drafts_expire_at": None,
    "reuses": None,
    "continues": None,
    "progress": {"step": 4, "steps": 4},
    "detail": None,
    "queue": {"position": None, "eta_s": None, "eta_basis": None},
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
            "made_by": MADE_BY,
        }
    ],
    "usage": {"steps": 4, "device_seconds": 1.2, "compile_seconds": 0.0, "queue_seconds": 0.125},
    "error": None,
    "warnings": [],
    "metadata": {"shot": "12"},
}
VERIFY: Example = {"job": _JOB_ID, "output": 0}
VERIFICATION: Example = {
    "object": "verification",
    "verdict": "identical",
    "message": "identical, bit for bit: the whole file",
    "job": _JOB_ID[:-1] + "a",
    "sha256": {"file": _SHA256, "drawn": _SHA256},
    "pixels_sha256": {"file": _SHA256[::-1], "drawn": _SHA256[::-1]},
    "max_difference": 0,
    "differing_share": 0.0,
    "psnr_db": None,
    "differs_at_step": None,
    "compared_steps": None,
    "tolerance_db": None,
    "made_by": MADE_BY,
    "drawn_by": MADE_BY,
}
PENDING: Example = {
    **dict.fromkeys(VERIFICATION),
    "object": "verification",
    "verdict": "pending",
    "message": "it is still being generated; repeat the request with the same Idempotency-Key",
    "job": _JOB_ID,
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
    "expires_at": None,
    "queue": {"position": 3, "eta_s": 4.2, "eta_basis": "measured"},
}
CANCELED_JOB: Example = {**_WITHOUT_OUTPUTS, "state": "canceled"}
ACCEPTED: Example = {
    "id": _JOB_ID,
    "object": "job.accepted",
    "links": {"job": f"/v1/jobs/{_JOB_ID}", "events": f"/v1/jobs/{_JOB_ID}/events"},
}
JOBS: Example = {"object": "list", "data": [JOB], "has_more": True, "next": _JOB_ID}

MODEL: Example = {
    "id": "flux-demo",
    "object": "model",
    "created": 0,
    "owned_by": "atelier",
    "name": "flux-demo",
    "aliases": ["dall-e-3"],
    "version": None,
    "fingerprint": _SHA256,
    "family": "flux",
    "backend": "native",
    "lacks": [],
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
    "hires_upscalers": [],
    "controls": {},
    "upscalers": {"photo": {"scale": 4, "tile": 256, "digest": _SHA256}},
    "has_exact": True,
    "base": None,
    "batching": {"mode": "exact", "levels": None},
    "sizes": {"mode": "any", "listed": []},
    "sound_hz": None,
    "has_alpha": False,
    "max_lora_rank": 128,
    "pools": ["flux"],
    "ready": True,
    "warnings": [],
}
MODELS: Example = {"object": "list", "data": [MODEL]}

LORA: Example = {
    "name": "ink",
    "object": "lora",
    "model": "flux-demo",
    "origin": "upload",
    "trigger": "in ink",
    "rank": 16,
    "vectors": 0,
    "embeddings": [],
    "networks": ["transformer"],
    "bytes": 1_048_576,
    "digest": _SHA256,
    "preview": "/v1/loras/ink/preview",
    "ready": True,
    "error": None,
    "warnings": [],
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


ADMIN_JOB: Example = {
    "id": _JOB_ID,
    "tenant": "acme",
    "state": "running",
    "model": "flux-demo",
    "served_by": "flux-demo",
    "created_at": "2026-01-31T12:00:00.125Z",
    "started_at": "2026-01-31T12:00:00.250Z",
    "finished_at": None,
    "stage": "denoising",
    "step": 2,
    "steps": 4,
    "pool": "flux-3f9c0a",
    "attempts": 1,
    "deaths": 0,
    "device_seconds": 0.5,
    "error": None,
}
ADMIN_JOBS: Example = {"data": [ADMIN_JOB], "next": None}
PAUSES: Example = {
    "data": [
        {
            "kind": "pool",
            "name": "flux",
            "by": "alice",
            "at": "2026-01-31T12:00:00.000Z",
            "reason": "a new driver",
            "drains": True,
        }
    ],
    "warning": None,
}
SLEEPS: Example = {
    "data": [
        {
            "name": "flux",
            "by": "alice",
            "at": "2026-01-31T12:00:00.000Z",
            "reason": "room for a training run",
        }
    ]
}
OVERVIEW: Example = {
    "waiting": [{"model": "flux-demo", "tenant": "acme", "jobs": 3, "device_seconds": 4.5}],
    "workers": [
        {
            "name": "flux-3f9c0a",
            "pool": "flux",
            "model": "flux-demo",
            "ready": True,
            "slots": 4,
            "layout": "context 8",
            "running": 1,
            "asleep": False,
        }
    ],
    "paused": PAUSES["data"],
    "running": [ADMIN_JOB],
    "failed": [],
}
AUDIT: Example = {
    "data": [
        {
            "id": "5b0c9d2e7f1a",
            "at": "2026-01-31T12:00:00.125000Z",
            "key_id": "3f9c0a1b2d4e",
            "name": "alice",
            "address": "10.0.0.7",
            "act": "drain pool",
            "target": "flux",
            "reason": "a new driver",
            "details": {},
            "outcome": "done",
            "error": "",
        }
    ]
}


def schema_example(example: Example) -> JsonDict:
    """Return the `json_schema_extra` that adds an example to a body's class."""
    return {"examples": [example]}
