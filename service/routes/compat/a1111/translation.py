"""Conversion of an AUTOMATIC1111 request to the fields of `POST /v1/generate`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from models.spec.hires import FIELD as HIRES
from models.spec.model_spec import ModelSpec
from service.errors.problems import FieldError, Invalid
from service.jobs.model.job import FieldWarning
from service.routes.compat.a1111 import unsupported_fields
from service.routes.compat.a1111.bodies import ImageToImage, TextToImage
from service.routes.compat.a1111.hires import with_passes
from service.routes.compat.a1111.prompts import unknown_tags, without_adapters
from service.routes.compat.a1111.samplers import eta_of, scheduler_of, without_noise
from service.routes.compat.names import FieldNames

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
    unsupported_fields.check(body, has_mask=isinstance(body, ImageToImage) and bool(body.mask))
    sampler = without_noise(body.sampler_name or body.sampler_index, body.eta)
    eta = eta_of(sampler, body.eta)
    prompt, loras = without_adapters(body.prompt or "", body.lora or ())
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
    if (body.override_settings or {}).get(unsupported_fields.MODULES):
        message = "has no effect; the model has its own VAE and text encoders"
        field = f"override_settings.{unsupported_fields.MODULES}"
        warnings.append(FieldWarning(field=field, message=message))
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
