"""Example bodies of OpenAI's API for openapi.yaml."""

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
    "warnings": [],
}
EVENT: Example = {
    "type": "image_generation.completed",
    "b64_json": _PIXEL,
    "created_at": 1_769_860_801,
    **_ABOUT,
    "usage": _USAGE,
}

CHAT: Example = {
    "model": "flux-demo",
    "messages": [{"role": "user", "content": "a red circle on a blue background"}],
    "modalities": ["image", "text"],
    "seed": 7,
}
_CHAT_IMAGE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_PIXEL}"}}
COMPLETION: Example = {
    "id": "chatcmpl-job_0f8a1c2d3e4b5a69",
    "object": "chat.completion",
    "created": 1_769_860_800,
    "model": "flux-demo",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "", "images": [_CHAT_IMAGE]},
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 64, "completion_tokens": 16, "total_tokens": 80},
    "warnings": [],
}
CHUNK: Example = {
    "id": COMPLETION["id"],
    "object": "chat.completion.chunk",
    "created": 1_769_860_800,
    "model": "flux-demo",
    "choices": [{"index": 0, "delta": {"images": [_CHAT_IMAGE]}, "finish_reason": None}],
}
RESPOND: Example = {
    "model": "flux-demo",
    "input": "a red circle on a blue background",
    "tools": [{"type": "image_generation", "size": "64x64"}],
}
RESPONSE: Example = {
    "id": "resp_job_0f8a1c2d3e4b5a69",
    "object": "response",
    "created_at": 1_769_860_800,
    "status": "completed",
    "error": None,
    "incomplete_details": None,
    "instructions": None,
    "metadata": {},
    "model": "flux-demo",
    "output": [
        {
            "id": "ig_job_0f8a1c2d3e4b5a69_0",
            "type": "image_generation_call",
            "status": "completed",
            "result": _PIXEL,
            **_ABOUT,
        }
    ],
    "parallel_tool_calls": False,
    "previous_response_id": None,
    "store": False,
    "temperature": None,
    "tool_choice": "auto",
    "tools": [{"type": "image_generation"}],
    "top_p": None,
    "usage": {
        "input_tokens": 64,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 16,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 80,
    },
    "warnings": [],
}
PARTIAL: Example = {
    "type": "response.image_generation_call.partial_image",
    "sequence_number": 5,
    "output_index": 0,
    "item_id": "ig_job_0f8a1c2d3e4b5a69_0",
    "partial_image_index": 0,
    "partial_image_b64": _PIXEL,
}

VIDEO_REQUEST: Example = {
    "model": "wan-demo",
    "prompt": "a red circle that moves to the right",
    "seconds": 2,
    "size": "64x64",
    "seed": 7,
}
VIDEO_FORM: Example = {**VIDEO_REQUEST, "input_reference": "@first.png"}
REMIX: Example = {"prompt": "a green circle that moves to the right"}
VIDEO: Example = {
    "id": "job_0f8a1c2d3e4b5a69",
    "object": "video",
    "status": "completed",
    "progress": 100,
    "created_at": 1_769_860_800,
    "completed_at": 1_769_860_801,
    "expires_at": 1_769_947_201,
    "error": None,
    "model": "wan-demo",
    "prompt": "a red circle that moves to the right",
    "seconds": "2.125",
    "size": "64x64",
    "remixed_from_video_id": None,
    "seed": 7,
}
VIDEOS: Example = {
    "object": "list",
    "data": [VIDEO],
    "has_more": False,
    "first_id": VIDEO["id"],
    "last_id": VIDEO["id"],
}
DELETED: Example = {"id": VIDEO["id"], "object": "video.deleted", "deleted": True}
MLPERF_REQUEST: Example = {
    "prompt": "a red circle that moves to the right",
    "size": "64x64",
    "seconds": 2.0,
    "fps": 8,
    "num_inference_steps": 4,
    "seed": 42,
    "response_format": "video_path",
}
MLPERF_VIDEO: Example = {
    "video_id": VIDEO["id"],
    "video_bytes": None,
    "video_path": "http://localhost:8000/links/job_0f8a1c2d3e4b5a69/0?expires=1769864401"
    "&signature=…",
}
