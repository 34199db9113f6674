"""Conversion of an AUTOMATIC1111 request to the fields of `POST /v1/generate`.

Prompts may contain adapter tags, such as `<lora:name:0.8>`.

Source: AUTOMATIC1111 stable-diffusion-webui, modules/extra_networks.py, `parse_prompt` (the form of
tags).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from models.spec.hires import FIELD as HIRES
from models.spec.model_spec import ModelSpec
from service.errors.problems import FieldError, Invalid
from service.jobs.model.job import FieldWarning
from service.routes.compat.a1111 import neutral
from service.routes.compat.a1111.bodies import ImageToImage, TextToImage
from service.routes.compat.a1111.hires import with_passes
from service.routes.compat.a1111.samplers import eta_of, scheduler_of, without_noise
from service.routes.compat.names import FieldNames

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


MAX_WARNINGS = 8
"""Maximum number of unknown kinds of tags that are named."""
NAMES: Mapping[str, str] = MappingProxyType(
    {
        "model": "override_settings.sd_model_checkpoint",
        "num_inference_steps": "steps",
        "guidance_scale": "cfg_scale",
        "scheduler": "sampler_name",
        "scheduler.name": "sampler_name",
        "loras": "prompt",
        "image": "init_images",
        "mask_image": "mask",
        "strength": "denoising_strength",
        "hires": "enable_hr",
        "hires.scale": "hr_scale",
        "hires.width": "hr_resize_x",
        "hires.height": "hr_resize_y",
        "hires.upscaler": "hr_upscaler",
        "hires.strength": "denoising_strength",
        "hires.num_inference_steps": "hr_second_pass_steps",
        "refiner": "refiner_checkpoint",
        "refiner.switch": "refiner_switch_at",
    }
)
"""AUTOMATIC1111's names of this API's fields, except the number of images."""


def field_names(body: TextToImage, spec: ModelSpec) -> FieldNames:
    """Return AUTOMATIC1111's names of converted fields, for errors.

    Includes the field that determines the number of images.
    """
    names = {**NAMES, "num_images": "n_iter" if (body.n_iter or 1) > 1 else "batch_size"}
    if has_two_scales(body, spec):
        names |= {"guidance_scale": "distilled_cfg_scale", "true_cfg_scale": "cfg_scale"}
    return FieldNames(names)


def to_generate_fields(body: TextToImage, spec: ModelSpec) -> dict[str, Any]:
    """Convert a `txt2img` or `img2img` request to the fields of `POST /v1/generate`.

    It drops `cfg_scale` for models without guidance, since clients always send it.

    Raises: Invalid.
    """
    neutral.check(body, has_mask=isinstance(body, ImageToImage) and bool(body.mask))
    sampler = without_noise(body.sampler_name or body.sampler_index, body.eta)
    eta = eta_of(sampler, body.eta)
    prompt, loras = without_adapters(body.prompt or "")
    fields = {
        "model": spec.name,
        "prompt": prompt,
        "negative_prompt": body.negative_prompt or None,
        "loras": loras if loras and not body.disable_extra_networks else None,
        "width": body.width,
        "height": body.height,
        "num_inference_steps": body.steps,
        **_guidance(body, spec),
        "seed": body.seed if body.seed != -1 else None,
        "num_images": (body.batch_size or 1) * (body.n_iter or 1),
        "scheduler": scheduler_of(spec, sampler, body.scheduler),
        "eta": eta if "eta" in spec.fields else None,
        **with_passes(body, spec),
        **_syntax(spec),
        **(_from_image(body) if isinstance(body, ImageToImage) else {}),
    }
    explicit_nulls = {HIRES} if body.enable_hr is False else set()
    return {
        name: value for name, value in fields.items() if value is not None or name in explicit_nulls
    }


def _guidance(body: TextToImage, spec: ModelSpec) -> dict[str, Any]:
    """Convert the guidance scales; Forge sends two for Flux."""
    if has_two_scales(body, spec):
        return {"guidance_scale": body.distilled_cfg_scale, "true_cfg_scale": body.cfg_scale}
    return {"guidance_scale": body.cfg_scale if "guidance_scale" in spec.fields else None}


def has_two_scales(body: TextToImage, spec: ModelSpec) -> bool:
    """Return whether a request has Forge's distilled scale, and the model supports both."""
    return body.distilled_cfg_scale is not None and {"guidance_scale", "true_cfg_scale"} <= {
        *spec.fields
    }


def warnings_of(body: TextToImage, spec: ModelSpec) -> list[FieldWarning]:
    """Return warnings about fields that the model does not have, and tags of unknown kinds."""
    warnings = [
        FieldWarning(field="prompt", message=f"<{kind}:…> has no effect; use <lora:name:scale>")
        for kind in unknown_tags(body.prompt or "")[:MAX_WARNINGS]
    ]
    if body.distilled_cfg_scale is not None and not has_two_scales(body, spec):
        message = f"has no effect; the model {spec.name!r} has no distilled guidance"
        warnings.append(FieldWarning(field="distilled_cfg_scale", message=message))
    return warnings


def _syntax(spec: ModelSpec) -> dict[str, Any]:
    """Enable AUTOMATIC1111's prompt weights, if the model supports them."""
    return {"prompt_syntax": "weighted"} if "prompt_syntax" in spec.fields else {}


def _from_image(body: ImageToImage) -> dict[str, Any]:
    """Convert the fields of AUTOMATIC1111's `img2img`. Raises: Invalid."""
    if len(body.init_images) > 1:
        raise Invalid(
            [
                FieldError(
                    "init_images",
                    "one image per request; send another request for each of the others",
                )
            ]
        )
    return {
        "image": body.init_images[0],
        "mask_image": body.mask or None,
        "strength": body.denoising_strength,
    }
