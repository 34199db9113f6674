"""ComfyUI node that generates with Atelier. Copy this file into ComfyUI's folder `custom_nodes`."""

from __future__ import annotations

import base64
import io
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import torch
from comfy.model_management import throw_exception_if_processing_interrupted
from comfy.utils import ProgressBar
from PIL import Image

KEY_VARIABLE = "ATELIER_API_KEY"
READ_S = 60
"""Read timeout, longer than the interval of keep-alive comments in an event stream."""
ENDED = ("succeeded", "failed", "canceled", "expired")
MAX_SEED = 2**31 - 1


class AtelierError(Exception):
    """Error of a failed or refused generation; states why."""


class AtelierGenerate:
    """ComfyUI node that submits one request; its images form a batch."""

    CATEGORY = "Atelier"
    FUNCTION = "generate"
    RETURN_TYPES = ("IMAGE",)
    DESCRIPTION = "Generate images with a model of an Atelier server."

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, dict[str, tuple[Any, ...]]]:
        """Return the node's inputs for ComfyUI; 0 and -1 select the model's defaults."""
        side = ("INT", {"default": 0, "min": 0, "max": 16384, "step": 8})
        return {
            "required": {
                "server": ("STRING", {"default": "http://127.0.0.1:8000"}),
                "model": ("STRING", {"default": ""}),
                "prompt": ("STRING", {"multiline": True}),
                "negative_prompt": ("STRING", {"multiline": True, "default": ""}),
                "seed": ("INT", {"default": 0, "min": 0, "max": MAX_SEED}),
                "num_images": ("INT", {"default": 1, "min": 1, "max": 64}),
                "width": side,
                "height": side,
                "steps": ("INT", {"default": 0, "min": 0, "max": 1000}),
                "guidance": ("FLOAT", {"default": -1.0, "min": -1.0, "max": 100.0, "step": 0.1}),
                "strength": ("FLOAT", {"default": 0.6, "min": 0.0, "max": 1.0, "step": 0.01}),
            },
            "optional": {"image": ("IMAGE",)},
        }

    def generate(self, server: str, image: Any = None, **inputs: Any) -> tuple[torch.Tensor]:
        """Return the images: (batch, height, width, 3), from 0 to 1. Raises: AtelierError."""
        here = Server(server)
        job = here.json("/v1/generate", body_of(inputs, image))
        done = here.follow(job["id"])
        if done["state"] != "succeeded":
            raise AtelierError((done["error"] or {}).get("message") or f"it has {done['state']}")
        return (torch.stack([tensor(here.get(output["url"])) for output in done["outputs"]]),)


class Server:
    """HTTP client of an Atelier server."""

    def __init__(self, address: str) -> None:
        self._address = address.rstrip("/")

    def open(self, path: str, body: Any = None, method: str | None = None) -> Any:
        """Return an open response. Raises: AtelierError: the request was refused."""
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(KEY_VARIABLE):
            headers["Authorization"] = f"Bearer {key}"
        data = None if body is None else json.dumps(body).encode()
        try:
            return urlopen(
                Request(self._address + path, data, headers, method=method), None, READ_S
            )
        except HTTPError as error:
            raise AtelierError(refusal(error)) from None
        except OSError as error:
            raise AtelierError(f"no Atelier server responds at {self._address}: {error}") from None

    def get(self, path: str) -> bytes:
        """Return the bytes of a response. Raises: AtelierError."""
        with self.open(path) as answer:
            return bytes(answer.read())

    def json(self, path: str, body: Any = None) -> dict[str, Any]:
        """Return the JSON of a response. Raises: AtelierError."""
        with self.open(path, body) as answer:
            return dict(json.load(answer))

    def follow(self, job: str) -> dict[str, Any]:
        """Show a job's progress until it has ended; return it. Raises: AtelierError."""
        try:
            self._show(job)
        except BaseException:  # such as cancellation in ComfyUI
            with suppress(AtelierError):  # it has ended meanwhile
                self.open(f"/v1/jobs/{job}/cancel", method="POST").close()
            raise
        return self.json(f"/v1/jobs/{job}")

    def _show(self, job: str) -> None:
        bar = None
        with self.open(f"/v1/jobs/{job}/events") as lines:
            for name, data in events(lines):
                throw_exception_if_processing_interrupted()
                if name == "progress" and data.get("steps"):
                    bar = bar or ProgressBar(data["steps"])
                    bar.update_absolute(data["step"], data["steps"])
                elif name in ENDED:
                    return


def events(lines: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield names and data of server-sent events; a keep-alive comment has empty ones."""
    name = ""
    for line in lines:
        field, _, value = line.decode().rstrip("\n").partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            yield name, json.loads(value)
        elif line.startswith(b":"):
            yield "", {}


def body_of(inputs: dict[str, Any], image: torch.Tensor | None) -> dict[str, Any]:
    """Return the body of a request, without inputs at their defaults.

    Outputs are PNG for any model. A video gives a PNG per frame, which forms a batch here.
    """
    required = {name: inputs[name] for name in ("prompt", "seed", "num_images")}
    required["output"] = {"format": "png"}
    given = {name: inputs[name] for name in ("model", "negative_prompt", "width", "height")}
    given["num_inference_steps"] = inputs["steps"]
    body = required | {name: value for name, value in given.items() if value}
    if inputs["guidance"] >= 0:
        body["guidance_scale"] = inputs["guidance"]
    if image is not None:
        body |= {"image": data_url(image[0]), "strength": inputs["strength"]}
    return body


def tensor(file: bytes) -> torch.Tensor:
    """Return the pixels of an image file as a tensor."""
    pixels = np.asarray(Image.open(io.BytesIO(file)).convert("RGB"), np.float32)
    return torch.from_numpy(pixels / 255)


def data_url(image: torch.Tensor) -> str:
    """Return pixels as a PNG data URL for a request."""
    pixels = (image.clamp(0, 1) * 255).round().to(torch.uint8).cpu().numpy()
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def refusal(error: HTTPError) -> str:
    """Return the message of an error response."""
    try:
        problem = json.load(error)
    except ValueError:
        return f"HTTP status {error.code}"
    return str(problem.get("detail") or problem.get("title") or error.code)


NODE_CLASS_MAPPINGS = {"AtelierGenerate": AtelierGenerate}
NODE_DISPLAY_NAME_MAPPINGS = {"AtelierGenerate": "Generate with Atelier"}
