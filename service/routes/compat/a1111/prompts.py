"""Adapter tags in prompts, such as `<lora:name:0.8>`.

Source: AUTOMATIC1111 stable-diffusion-webui, modules/extra_networks.py, `parse_prompt` (the form).
"""

from __future__ import annotations

import re
from typing import Any

from service.errors.problems import FieldError, Invalid

_TAG = re.compile(r"<(\w{1,32}):([^<>]{1,400})>")
ADAPTERS = ("lora", "lyco")
"""Kinds of tags that name an adapter."""
OTHER_NETWORKS = ("hypernet",)
"""Kinds of tags that name a network which is not served."""


def without_adapters(prompt: str) -> tuple[str, list[dict[str, Any]]]:
    """Remove `<lora:…>` tags from a prompt; return the prompt and the adapters as `loras`.

    The scales of repeated adapters are added. Tags of unknown kinds have no effect.

    Raises: Invalid: a tag names a network that is not served, or its scale is not a number.
    """
    scales: dict[str, float] = {}
    tags = _TAG.findall(prompt)
    for kind, rest in tags:
        if kind in OTHER_NETWORKS:
            raise _wrong(f"<{kind}:…> is not supported; use <lora:name:scale>")
        if kind in ADAPTERS:
            name, scale = _read(rest)
            scales[name] = scales.get(name, 0.0) + scale
    text = _TAG.sub("", prompt).strip() if tags else prompt
    return text, [{"name": name, "scale": scale} for name, scale in scales.items()]


def unknown_tags(prompt: str) -> list[str]:
    """Return the kinds of a prompt's tags that name no network, without repetitions."""
    kinds = (kind for kind, _ in _TAG.findall(prompt))
    return [*dict.fromkeys(kind for kind in kinds if kind not in (*ADAPTERS, *OTHER_NETWORKS))]


def _read(rest: str) -> tuple[str, float]:
    """Parse the name and scale in a `<lora:…>` tag. Raises: Invalid."""
    name, *scale_texts = (part.strip() for part in rest.split(":"))
    try:
        scales = [float(text) for text in scale_texts] or [1.0]
    except ValueError:
        raise _wrong(f"<lora:{rest}>: its scale must be a number") from None
    if len({*scales}) > 1:
        raise _wrong(f"<lora:{rest}>: scales of the text encoder and the network must be the same")
    return name, scales[0]


def _wrong(message: str) -> Invalid:
    return Invalid([FieldError("prompt", message)])
