"""ComfyUI node that lets Atelier draw. Put this file into ComfyUI's folder `custom_nodes`."""

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
"""Longer than the pauses between the comments of an event stream."""
ENDED = ("succeeded", "failed", "canceled", "expired")
MOST = 2**31 - 1


class AtelierError(Exception):
    """Error that says why Atelier did not draw."""


class AtelierGenerate:
    """Node of one request; its images are a batch."""

    CATEGORY = "Atelier"
    FUNCTION = "generate"
    RETURN_TYPES = ("IMAGE",)
    DESCRIPTION = "Draw with a model that an Atelier server serves."

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, dict[str, tuple[Any, ...]]]:
        """Return what the node takes, as ComfyUI asks for it; 0 and -1 are the model's own."""
        side = ("INT", {"default": 0, "min": 0, "max": 16384, "step": 8})
        return {
            "required": {
                "server": ("STRING", {"default": "http://127.0.0.1:8000"}),
                "model": ("STRING", {"default": ""}),
                "prompt": ("STRING", {"multiline": True}),
                "negative_prompt": ("STRING", {"multiline": True, "default": ""}),
                "seed": ("INT", {"default": 0, "min": 0, "max": MOST}),
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
    """Atelier at an address."""

    def __init__(self, address: str) -> None:
        self._address = address.rstrip("/")

    def open(self, path: str, body: Any = None, method: str | None = None) -> Any:
        """Return an open answer. Raises: AtelierError: it is a refusal."""
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
            raise AtelierError(f"no Atelier answers at {self._address}: {error}") from None

    def get(self, path: str) -> bytes:
        """Return the bytes of an answer. Raises: AtelierError."""
        with self.open(path) as answer:
            return bytes(answer.read())

    def json(self, path: str, body: Any = None) -> dict[str, Any]:
        """Return an answer. Raises: AtelierError."""
        with self.open(path, body) as answer:
            return dict(json.load(answer))

    def follow(self, job: str) -> dict[str, Any]:
        """Show a job's steps until it has ended; return it. Raises: AtelierError."""
        try:
            self._show(job)
        except BaseException:  # canceled in ComfyUI, among others
            with suppress(AtelierError):  # it has ended by itself
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
    """Names and data of server-sent events; a comment, which keeps the line open, has none."""
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
    """Return the body of a request, without what is left to the model.

    Outputs are PNG whatever the model makes: of a video one of each frame, which is a batch here.
    """
    own = {name: inputs[name] for name in ("prompt", "seed", "num_images")}
    own["output"] = {"format": "png"}
    given = {name: inputs[name] for name in ("model", "negative_prompt", "width", "height")}
    given["num_inference_steps"] = inputs["steps"]
    body = own | {name: value for name, value in given.items() if value}
    if inputs["guidance"] >= 0:
        body["guidance_scale"] = inputs["guidance"]
    if image is not None:
        body |= {"image": data_url(image[0]), "strength": inputs["strength"]}
    return body


def tensor(file: bytes) -> torch.Tensor:
    """Return the pixels of an image file."""
    pixels = np.asarray(Image.open(io.BytesIO(file)).convert("RGB"), np.float32)
    return torch.from_numpy(pixels / 255)


def data_url(image: torch.Tensor) -> str:
    """Return pixels as a PNG for a request."""
    pixels = (image.clamp(0, 1) * 255).round().to(torch.uint8).cpu().numpy()
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def refusal(error: HTTPError) -> str:
    """Return what a refusal says, field by field where it does."""
    try:
        said = json.load(error)
    except ValueError:
        return f"HTTP status {error.code}"
    return str(said.get("detail") or said.get("title") or error.code)


NODE_CLASS_MAPPINGS = {"AtelierGenerate": AtelierGenerate}
NODE_DISPLAY_NAME_MAPPINGS = {"AtelierGenerate": "Generate with Atelier"}
