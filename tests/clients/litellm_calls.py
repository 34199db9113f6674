"""Calls LiteLLM in its own environment: `litellm_calls.py CALL` prints the result.

Variables: `ATELIER_URL` (up to /v1), `ATELIER_KEY`, and `PICTURE`, a file to edit.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import litellm
import yaml

RECIPE = Path(__file__).resolve().parents[2] / "examples" / "litellm" / "config.yaml"
URL, KEY = os.environ["ATELIER_URL"], os.environ["ATELIER_KEY"]
HERE: dict[str, Any] = {"api_base": URL, "api_key": KEY}
IMAGES, VIDEOS = "openai/flux-demo", "openai/wan-demo"
PROMPT = "a red circle"
POLL_S = 0.1


def image_generation() -> Any:
    answer = litellm.image_generation(
        PROMPT, model=IMAGES, n=2, size="64x64", extra_body={"seed": 7}, **HERE
    )
    return sizes(answer)


def image_edit() -> Any:
    with Path(os.environ["PICTURE"]).open("rb") as image:
        return sizes(litellm.image_edit(image, "a blue circle", model=IMAGES, **HERE))


def gateway() -> Any:
    """Call LiteLLM's router with the recipe's settings."""
    router = litellm.Router(model_list=yaml.safe_load(RECIPE.read_text())["model_list"])
    return sizes(router.image_generation(PROMPT, model="flux-demo"))


def refused() -> Any:
    try:
        litellm.image_generation(PROMPT, model=IMAGES, size="63x64", **HERE)
    except litellm.exceptions.BadRequestError as error:
        return str(error)


def keyless() -> Any:
    try:
        litellm.image_generation(PROMPT, model=IMAGES, api_base=URL, api_key="wrong")
    except litellm.exceptions.AuthenticationError as error:
        return str(error)


def video() -> Any:
    created = litellm.video_generation(PROMPT, model=VIDEOS, seconds="1", size="64x64", **HERE)
    while (status := litellm.video_status(created.id, **HERE)).status in ("queued", "in_progress"):
        time.sleep(POLL_S)
    content = litellm.video_content(created.id, **HERE)
    remixed = litellm.video_remix(created.id, "a blue circle", **HERE)
    listed = litellm.video_list(custom_llm_provider="openai", **HERE)
    return {
        "status": status.status,
        "bytes": base64.b64encode(content[:12]).decode(),
        "remix": remixed.status,
        "listed": len(listed["data"]),
    }


def sizes(answer: Any) -> list[int]:
    """Size of each image in bytes."""
    return [len(base64.b64decode(image.b64_json)) for image in answer.data]


CALLS = {
    call.__name__: call for call in (image_generation, image_edit, gateway, refused, keyless, video)
}

if __name__ == "__main__":
    print(json.dumps(CALLS[sys.argv[1]]()))
