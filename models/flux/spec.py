"""Builds the `ModelSpec` of a Flux checkpoint: tasks, request fields, defaults and limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from models.flow.spec import (
    DEFAULT_LATENTS_PX,
    TRUE_CFG_NEEDS,
    MakeSpec,
    default_size,
    image_limits,
    spec_builder,
)
from models.flux.config import FluxConfig
from models.flux.kinds import PLAIN, CheckpointKind
from models.flux.redux import MAX_IMAGES
from models.sampling.flow_match import FlowMatchEuler
from models.spec.controls import FIELD as CONTROL
from models.spec.field_types import MAX_TEXT_TOKENS
from models.spec.image_prompts import FIELD, ImagePrompt
from models.spec.model_spec import Need
from models.vae.config import VaeConfig

Value = TypeVar("Value")

NO_IMAGE_PROMPTS: Mapping[str, ImagePrompt] = {}

OF_CONTROLS: dict[str, tuple[Need, ...]] = {"guidance_scale": (Need(field=CONTROL),)}
"""Needs of a model in which only the ControlNets take a guidance scale."""


def spec_of(
    config: FluxConfig,
    vae: VaeConfig,
    scheduler: FlowMatchEuler,
    kind: CheckpointKind = PLAIN,
    image_prompts: Mapping[str, ImagePrompt] = NO_IMAGE_PROMPTS,
    controls: Sequence[FluxConfig] = (),
) -> MakeSpec:
    """Return a function that builds the spec of a Flux checkpoint with these configs.

    Args:
        image_prompts: supported image prompts, by name.
        controls: configs of its ControlNets.
    """
    side = DEFAULT_LATENTS_PX * vae.downsampling
    fields = fields_of([config, *controls], kind) | ({FIELD} if image_prompts else set())
    distilled_in_time = not (config.guidance_embeds or scheduler.use_dynamic_shifting)
    max_prompts = MAX_IMAGES if image_prompts else 0
    defaults = {
        **default_size(vae.downsampling),
        "num_inference_steps": 4 if distilled_in_time else 28,
        "guidance_scale": 3.5,
        "true_cfg_scale": 1.0,
        "max_sequence_length": MAX_TEXT_TOKENS,
        **kind.defaults,
    }
    return spec_builder(
        fields,
        _among(fields, defaults),
        {task: _among(fields, values) for task, values in kind.task_defaults.items()},
        family="flux",
        tasks=kind.tasks,
        needed=kind.needed,
        needs={**TRUE_CFG_NEEDS, **({} if config.guidance_embeds else OF_CONTROLS)},
        limits=image_limits(
            2 * vae.downsampling, 2 * side, MAX_TEXT_TOKENS, max_image_prompts=max_prompts
        ),
        read_pixels=kind.read_pixels,
        image_prompts=image_prompts,
        embedding_sizes={
            "clip": config.pooled_projection_dim,
            "t5": config.joint_attention_dim,
        },
    )


def fields_of(configs: Sequence[FluxConfig], kind: CheckpointKind = PLAIN) -> frozenset[str]:
    """Return Flux's request fields; no guidance scale if no network takes one (schnell)."""
    guided = any(config.guidance_embeds for config in configs)
    return kind.fields if guided else kind.fields - {"guidance_scale"}


def _among(fields: frozenset[str], values: Mapping[str, Value]) -> dict[str, Value]:
    return {name: value for name, value in values.items() if name in fields}
