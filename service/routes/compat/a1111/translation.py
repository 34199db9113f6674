"""A request of AUTOMATIC1111's in our fields."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from models.spec.hires import FIELD as HIRES
from models.spec.model_spec import ModelSpec
from service.errors.problems import FieldError, Invalid
from service.routes.compat.a1111 import neutral
from service.routes.compat.a1111.bodies import ImageToImage, TextToImage
from service.routes.compat.a1111.hires import with_passes
from service.routes.compat.a1111.prompts import without_adapters
from service.routes.compat.a1111.samplers import eta_of, scheduler_of, without_noise
from service.routes.compat.names import Names

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
"""Names of our fields there, but for the number of images."""


def names_of(asked: TextToImage) -> Names:
    """Return the names of our fields in a request: `n_iter` may be what makes many images."""
    return Names({**NAMES, "num_images": "n_iter" if (asked.n_iter or 1) > 1 else "batch_size"})


def translated(asked: TextToImage, spec: ModelSpec) -> dict[str, Any]:
    """Return a request in our fields, without `cfg_scale` for a model that has no guidance.

    Clients send it with every request, whatever the model is.

    Raises: Invalid.
    """
    neutral.check(asked, has_mask=isinstance(asked, ImageToImage) and bool(asked.mask))
    sampler = without_noise(asked.sampler_name or asked.sampler_index, asked.eta)
    eta = eta_of(sampler, asked.eta)
    prompt, loras = without_adapters(asked.prompt or "")
    fields = {
        "model": spec.name,
        "prompt": prompt,
        "negative_prompt": asked.negative_prompt or None,
        "loras": loras if loras and not asked.disable_extra_networks else None,
        "width": asked.width,
        "height": asked.height,
        "num_inference_steps": asked.steps,
        "guidance_scale": asked.cfg_scale if "guidance_scale" in spec.fields else None,
        "seed": asked.seed if asked.seed != -1 else None,
        "num_images": (asked.batch_size or 1) * (asked.n_iter or 1),
        "scheduler": scheduler_of(spec, sampler, asked.scheduler),
        "eta": eta if "eta" in spec.fields else None,
        **with_passes(asked, spec),
        **_syntax(spec),
        **(_from_image(asked) if isinstance(asked, ImageToImage) else {}),
    }
    off = {HIRES} if asked.enable_hr is False else set()
    return {name: value for name, value in fields.items() if value is not None or name in off}


def _syntax(spec: ModelSpec) -> dict[str, Any]:
    """Weights mean what they mean there, where the model knows them."""
    return {"prompt_syntax": "weighted"} if "prompt_syntax" in spec.fields else {}


def _from_image(asked: ImageToImage) -> dict[str, Any]:
    """Raises: Invalid."""
    if len(asked.init_images) > 1:
        raise Invalid([FieldError("init_images", "one image a request; ask again for the others")])
    return {
        "image": asked.init_images[0],
        "mask_image": asked.mask or None,
        "strength": asked.denoising_strength,
    }
