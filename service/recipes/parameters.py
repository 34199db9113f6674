"""Text `parameters` of AUTOMATIC1111: written of a recipe, and read as that program reads it.

The prompt, a line with `Negative prompt: `, and a last line of `Name: value` by commas. A value
with a comma, a colon or a line end is a JSON string.
Source: AUTOMATIC1111 stable-diffusion-webui, modules/infotext_utils.py (the format).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from models.spec.hires import LANCZOS, LATENT
from models.spec.prompt_syntax import escaped
from service.recipes.recipe import Recipe

NEGATIVE = "Negative prompt:"
SAMPLERS: Mapping[str, str] = {
    "euler": "Euler",
    "euler_ancestral": "Euler a",
    "ddim": "DDIM",
    "dpmpp_2m": "DPM++ 2M",
    "dpmpp_2m_sde": "DPM++ 2M SDE",
    "unipc": "UniPC",
    "lcm": "LCM",
    "flow_match_euler": "Euler",
    # Of a checkpoint, and of requests that name the class of diffusers.
    "EulerDiscreteScheduler": "Euler",
    "EulerAncestralDiscreteScheduler": "Euler a",
    "DDIMScheduler": "DDIM",
    "DPMSolverMultistepScheduler": "DPM++ 2M",
    "UniPCMultistepScheduler": "UniPC",
    "LCMScheduler": "LCM",
    "FlowMatchEulerDiscreteScheduler": "Euler",
}
"""AUTOMATIC1111's names of our schedulers; others are written as they are."""
SCHEDULES: Mapping[str, str] = {
    "use_karras_sigmas": "Karras",
    "use_exponential_sigmas": "Exponential",
    "use_beta_sigmas": "Beta",
}
"""Names of noise schedules there, by the scheduler's option that chooses one."""
HIRES_UPSCALERS = {LATENT: "Latent", LANCZOS: "Lanczos"}
"""AUTOMATIC1111's names of the upscalers that are no network."""
SPACINGS: Mapping[str, str] = {"linspace": "Uniform", "trailing": "SGM Uniform"}
"""Names of spacings there, of a request that chose one and no noise schedule."""
HASH_CHARS = 10
"""Characters of a model's or adapter's hash that it shows."""
LEAST_PAIRS = 3
"""Pairs that a last line has at the least; with fewer it is a part of the prompt."""

_PAIR = re.compile(r'(\w[\w /-]{0,60}):\s*("(?:\\.|[^\\"])+"|[^,]*)(?:,|$)')
_SIZE = re.compile(r"(\d+)x(\d+)")


def parameters_of(recipe: Recipe) -> str:
    """Return the text that AUTOMATIC1111 would have written, as far as it has words for it."""
    request = recipe.request
    lines = [_prompt(request)]
    if negative := _weighted(request, "negative_prompt"):
        lines.append(f"{NEGATIVE} {negative}")
    pairs = (f"{name}: {_quoted(str(value))}" for name, value in _pairs(recipe))
    return "\n".join([*lines, ", ".join(pairs)]).strip()


def _prompt(request: Mapping[str, Any]) -> str:
    """The prompt, with adapters of one scale as AUTOMATIC1111 writes them."""
    plain = (lora for lora in request.get("loras", ()) if isinstance(lora["scale"], int | float))
    tags = [f"<lora:{lora['name']}:{_number(lora['scale'])}>" for lora in plain]
    return " ".join(part for part in (_weighted(request, "prompt"), *tags) if part)


def _weighted(request: Mapping[str, Any], field: str) -> str:
    """A prompt as AUTOMATIC1111 reads the same, for which brackets of a plain one are escaped."""
    text = str(request.get(field) or "")
    return text if request.get("prompt_syntax") == "weighted" else escaped(text)


def _pairs(recipe: Recipe) -> Iterator[tuple[str, Any]]:
    request, hires = recipe.request, recipe.request.get("hires") or {}
    found = {
        "Steps": request.get("num_inference_steps"),
        "Sampler": SAMPLERS.get(recipe.scheduler, recipe.scheduler),
        "Schedule type": _schedule(request.get("scheduler", {})),
        "CFG scale": _number(request.get("guidance_scale")),
        "Seed": request["seed"],
        "Size": f"{request['width']}x{request['height']}" if request.get("width") else None,
        "Model hash": recipe.fingerprint[:HASH_CHARS],
        "Model": request.get("model"),
        "Denoising strength": _number(hires.get("strength", request.get("strength"))),
        "Clip skip": request.get("clip_skip"),
        "Lora hashes": ", ".join(f"{n}: {d[:HASH_CHARS]}" for n, d in recipe.loras.items()),
        "Hires resize": f"{hires['width']}x{hires['height']}" if hires else None,
        "Hires steps": recipe.hires_steps,  # all that are named there run
        "Hires upscaler": HIRES_UPSCALERS.get(hires.get("upscaler", ""), hires.get("upscaler")),
        "Postprocess upscaler": request.get("upscale", {}).get("name"),
        "Postprocess upscale by": _number(request.get("upscale", {}).get("scale")),
        "Frames": request.get("num_frames"),
        "FPS": _number(request.get("fps")),
        "Version": recipe.generator,
    }
    yield from ((name, value) for name, value in found.items() if value not in (None, ""))


def _schedule(scheduler: Mapping[str, Any]) -> str:
    spacing = SPACINGS.get(scheduler.get("timestep_spacing", ""), "")
    return next((name for option, name in SCHEDULES.items() if scheduler.get(option)), spacing)


def _number(value: float | None) -> str | None:
    """Return a number as it is, without a fraction that is none."""
    return None if value is None else str(value).removesuffix(".0")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if re.search(r"[,:\n]", text) else text


def parse_parameters(text: str) -> dict[str, str]:
    """Return what such a text says, by AUTOMATIC1111's names.

    `Prompt` and `Negative prompt` are always there; a size becomes two, `Size-1` and `Size-2`.
    """
    *lines, last = text.strip().split("\n")
    pairs = _PAIR.findall(last)
    if len(pairs) < LEAST_PAIRS:
        lines, pairs = [*lines, last], []
    prompt, negative = _prompts([line.strip() for line in lines])
    found = {"Prompt": prompt, "Negative prompt": negative}
    for name, value in pairs:
        found |= _read(name, value)
    return found


def _prompts(lines: list[str]) -> tuple[str, str]:
    """The prompt, and the negative one: from the first line that says so."""
    at = next((i for i, line in enumerate(lines) if line.startswith(NEGATIVE)), len(lines))
    negative = [line.removeprefix(NEGATIVE).strip() for line in lines[at:]]
    return "\n".join(lines[:at]), "\n".join(negative)


def _read(name: str, value: str) -> dict[str, str]:
    if size := _SIZE.fullmatch(value):
        return {f"{name}-1": size[1], f"{name}-2": size[2]}
    try:
        return {name: str(json.loads(value)) if value.startswith('"') else value}
    except ValueError:  # no JSON: it only begins with a quote
        return {name: value}
