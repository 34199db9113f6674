"""Spec of a Flux checkpoint for the API: tasks, fields, defaults and limits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from models.checkpoint.folder import chosen_defaults, fingerprint
from models.flow.spec import BUCKET_FIELDS, DEFAULT_LATENTS_PX, image_limits
from models.flux.config import FluxConfig
from models.flux.redux import MAX_IMAGES
from models.flux.request import MAX_SEQUENCE_LENGTH
from models.flux.tools import PLAIN, Tool
from models.sampling.flow_match import FlowMatchEuler
from models.spec.image_prompts import FIELD, ImagePrompt
from models.spec.model_spec import ModelSpec, Need
from models.spec.quality_presets import LEVERS, Lever
from models.vae.config import VaeConfig

Value = TypeVar("Value")

NO_IMAGE_PROMPTS: Mapping[str, ImagePrompt] = {}

_TRUE_CFG = (Need(field="true_cfg_scale", above=1), Need(field="negative_prompt"))
NEEDS: Mapping[str, tuple[Need, ...]] = {
    "true_cfg_scale": (Need(field="negative_prompt"),),
    **dict.fromkeys(("negative_prompt", "negative_prompt_2"), _TRUE_CFG),
}
"""Needs as diffusers has them: a scale above 1 together with a negative prompt."""


def make_spec(
    config: FluxConfig,
    vae: VaeConfig,
    scheduler: FlowMatchEuler,
    name: str,
    sources: tuple[Path, ...],
    defaults: Mapping[str, Any],
    tool: Tool = PLAIN,
    image_prompts: Mapping[str, ImagePrompt] = NO_IMAGE_PROMPTS,
) -> ModelSpec:
    """Defaults are diffusers' own, then the folder's `atelier.json`, then the operator's.

    Args:
        sources: the folder, and whatever else its weights come from.
        image_prompts: that it reads, by name.
    """
    side = DEFAULT_LATENTS_PX * vae.downsampling
    fields = fields_of(config, tool) | ({FIELD} if image_prompts else set())
    chosen = chosen_defaults(name, sources[0], defaults, fields)
    distilled_in_time = not (config.guidance_embeds or scheduler.use_dynamic_shifting)
    most_prompts = MAX_IMAGES if image_prompts else 0
    own = {
        "width": side,
        "height": side,
        "num_inference_steps": 4 if distilled_in_time else 28,
        "guidance_scale": 3.5,
        "true_cfg_scale": 1.0,
        "max_sequence_length": MAX_SEQUENCE_LENGTH,
        **tool.defaults,
    }
    return ModelSpec(
        name=name,
        family="flux",
        tasks=tool.tasks,
        fields=fields,
        defaults={**_among(fields, own), **chosen},
        task_defaults={
            task: {**_among(fields, values), **chosen}
            for task, values in tool.task_defaults.items()
        },
        needed=tool.needed,
        needs=_among(fields, NEEDS),
        limits=image_limits(
            2 * vae.downsampling, 2 * side, MAX_SEQUENCE_LENGTH, max_image_prompts=most_prompts
        ),
        read_pixels=tool.read_pixels,
        image_prompts=image_prompts,
        bucket_fields=BUCKET_FIELDS,
        fingerprint=fingerprint(*sources),
    )


def fields_of(config: FluxConfig, tool: Tool = PLAIN) -> frozenset[str]:
    """Request fields; no guidance scale where the network has no input for it (schnell)."""
    return tool.fields if config.guidance_embeds else tool.fields - {"guidance_scale"}


def _among(fields: frozenset[str], values: Mapping[str, Value]) -> dict[str, Value]:
    return {name: value for name, value in values.items() if name in fields}


def levers_of(config: FluxConfig) -> frozenset[Lever]:
    """Return its levers; a step cache needs a first double block for the image's tokens."""
    return LEVERS if config.num_layers else LEVERS - {"step_cache"}
