"""AUTOMATIC1111's generation parameters as text ("infotext"): writer and parser.

The text has the prompt, a line with `Negative prompt: `, and a last line of comma-separated `Name:
value` pairs. A value with a comma, a colon or a line end is a JSON string.

Source: AUTOMATIC1111 stable-diffusion-webui, modules/infotext_utils.py (the format).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from models.spec.hires import LANCZOS, LATENT
from models.spec.prompt_syntax import escaped
from models.spec.scheduler_names import SAMPLERS
from service.recipes.recipe import Recipe

NEGATIVE = "Negative prompt:"
LABELS: Mapping[str, str] = {
    name: sampler.name
    for sampler in reversed(SAMPLERS)  # the first label of a scheduler applies
    for name in (*sampler.schedulers, *sampler.classes)
}
"""AUTOMATIC1111's names of our schedulers, and of diffusers' classes. Others are written
unchanged."""
SCHEDULES: Mapping[str, str] = {
    "use_karras_sigmas": "Karras",
    "use_exponential_sigmas": "Exponential",
    "use_beta_sigmas": "Beta",
}
"""AUTOMATIC1111's names of noise schedules, by the scheduler option that selects them."""
HIRES_UPSCALERS = {LATENT: "Latent", LANCZOS: "Lanczos"}
"""AUTOMATIC1111's names of upscalers that are not networks."""
SPACINGS: Mapping[str, str] = {"linspace": "Uniform", "trailing": "SGM Uniform"}
"""AUTOMATIC1111's names of timestep spacings, used if the request sets no noise schedule."""
HASH_CHARS = 10
"""Length of a displayed model or adapter hash."""
MIN_PAIRS = 3
"""Minimum number of pairs in a last line; with fewer, the line is part of the prompt."""

_PAIR = re.compile(r'(\w[\w /-]{0,60}):\s*("(?:\\.|[^\\"])+"|[^,]*)(?:,|$)')
_NEEDS_QUOTES = re.compile(r"[,:\n]")
_SIZE = re.compile(r"(\d+)x(\d+)")


def parameters_of(recipe: Recipe) -> str:
    """Write a recipe as AUTOMATIC1111's text, as far as the format can express it."""
    request = recipe.request
    lines = [_prompt(request)]
    if negative := _weighted(request, "negative_prompt"):
        lines.append(f"{NEGATIVE} {negative}")
    pairs = (f"{name}: {_quoted(str(value))}" for name, value in _pairs(recipe))
    return "\n".join([*lines, ", ".join(pairs)]).strip()


def _prompt(request: Mapping[str, Any]) -> str:
    """Write the prompt, with tags for adapters of constant scale."""
    plain = (lora for lora in request.get("loras", ()) if isinstance(lora["scale"], int | float))
    tags = [f"<lora:{lora['name']}:{_number(lora['scale'])}>" for lora in plain]
    return " ".join(part for part in (_weighted(request, "prompt"), *tags) if part)


def _weighted(request: Mapping[str, Any], field: str) -> str:
    """Write a prompt in AUTOMATIC1111's syntax, escaping the brackets of a plain one."""
    text = str(request.get(field) or "")
    return text if request.get("prompt_syntax") == "weighted" else escaped(text)


def _pairs(recipe: Recipe) -> Iterator[tuple[str, Any]]:
    request, hires = recipe.request, recipe.request.get("hires") or {}
    values = {
        "Steps": request.get("num_inference_steps"),
        "Sampler": LABELS.get(recipe.scheduler, recipe.scheduler),
        "Schedule type": _schedule(request.get("scheduler", {})),
        "CFG scale": _number(request.get("guidance_scale")),
        "Seed": request["seed"],
        "Size": f"{request['width']}x{request['height']}" if request.get("width") else None,
        "Model hash": recipe.fingerprint[:HASH_CHARS],
        "Model": request.get("model"),
        "Denoising strength": _number(hires.get("strength", request.get("strength"))),
        "Clip skip": request.get("clip_skip"),
        "Lora hashes": _hashes(recipe.loras),
        "TI hashes": _hashes(recipe.embeddings or {}),
        "Hires resize": f"{hires['width']}x{hires['height']}" if hires else None,
        "Hires steps": recipe.hires_steps,  # every named step runs
        "Hires upscaler": HIRES_UPSCALERS.get(hires.get("upscaler", ""), hires.get("upscaler")),
        "Postprocess upscaler": request.get("upscale", {}).get("name"),
        "Postprocess upscale by": _number(request.get("upscale", {}).get("scale")),
        "Frames": request.get("num_frames"),
        "FPS": _number(request.get("fps")),
        "Version": recipe.generator,
    }
    yield from ((name, value) for name, value in values.items() if value not in (None, ""))


def _hashes(digests: Mapping[str, str]) -> str:
    return ", ".join(f"{name}: {digest[:HASH_CHARS]}" for name, digest in digests.items())


def _schedule(scheduler: Mapping[str, Any]) -> str:
    spacing = SPACINGS.get(scheduler.get("timestep_spacing", ""), "")
    return next((name for option, name in SCHEDULES.items() if scheduler.get(option)), spacing)


def _number(value: float | None) -> str | None:
    """Format a number for AUTOMATIC1111's text, without a zero fraction."""
    return None if value is None else str(value).removesuffix(".0")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if _NEEDS_QUOTES.search(text) else text


def parse_parameters(text: str) -> dict[str, str]:
    """Parse AUTOMATIC1111's text into values by its names.

    The result always has `Prompt` and `Negative prompt`. A size becomes `Size-1` and `Size-2`.
    """
    *lines, last = text.strip().split("\n")
    pairs = _PAIR.findall(last)
    if len(pairs) < MIN_PAIRS:
        lines, pairs = [*lines, last], []
    prompt, negative = _prompts([line.strip() for line in lines])
    result = {"Prompt": prompt, "Negative prompt": negative}
    for name, value in pairs:
        result |= _read(name, value)
    return result


def _prompts(lines: list[str]) -> tuple[str, str]:
    """Split AUTOMATIC1111's text into prompt and negative prompt, at the latter's prefix."""
    at = next((i for i, line in enumerate(lines) if line.startswith(NEGATIVE)), len(lines))
    negative = [line.removeprefix(NEGATIVE).strip() for line in lines[at:]]
    return "\n".join(lines[:at]), "\n".join(negative)


def _read(name: str, value: str) -> dict[str, str]:
    if size := _SIZE.fullmatch(value):
        return {f"{name}-1": size[1], f"{name}-2": size[2]}
    try:
        return {name: str(json.loads(value)) if value.startswith('"') else value}
    except ValueError:  # not JSON, but starts with a quote
        return {name: value}
