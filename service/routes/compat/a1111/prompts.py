"""Prompts as AUTOMATIC1111's users write them: adapters stand in the text.

Source: AUTOMATIC1111 stable-diffusion-webui, modules/extra_networks.py, `parse_prompt` (the form).
"""

from __future__ import annotations

import re
from typing import Any

from service.errors.problems import FieldError, Invalid

_TAG = re.compile(r"<(\w{1,32}):([^<>]{1,400})>")
ADAPTERS = ("lora", "lyco")
"""Kinds of tags that name an adapter."""


def without_adapters(prompt: str) -> tuple[str, list[dict[str, Any]]]:
    """Return a prompt without its tags, and the adapters that they name as `loras`.

    The scales of one that is named twice are added up.

    Raises: Invalid: a tag is of another kind, or its scale is no number.
    """
    scales: dict[str, float] = {}
    for kind, rest in _TAG.findall(prompt):
        if kind not in ADAPTERS:
            raise _wrong(f"<{kind}:…> is not served here; there is <lora:name:scale>")
        name, scale = _read(rest)
        scales[name] = scales.get(name, 0.0) + scale
    text = _TAG.sub("", prompt).strip() if scales else prompt
    return text, [{"name": name, "scale": scale} for name, scale in scales.items()]


def _read(rest: str) -> tuple[str, float]:
    """Name and scale. Raises: Invalid."""
    name, *given = (part.strip() for part in rest.split(":"))
    try:
        scales = [float(text) for text in given] or [1.0]
    except ValueError:
        raise _wrong(f"<lora:{rest}>: its scale must be a number") from None
    if len({*scales}) > 1:
        raise _wrong(f"<lora:{rest}>: scales of the text encoder and the network must be the same")
    return name, scales[0]


def _wrong(said: str) -> Invalid:
    return Invalid([FieldError("prompt", said)])
