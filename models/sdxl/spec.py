"""Builds the `ModelSpec` of an SDXL checkpoint: tasks, request fields, defaults and limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.sampling.registry import EVALUATIONS, OPTIONS, STEP_LISTS
from models.sdxl.compatibility import Parts
from models.sdxl.config import UNetConfig
from models.sdxl.request import FIELDS
from models.spec.field_types import REFINER
from models.spec.hires import FIELD as HIRES
from models.spec.image_prompts import FIELD as IMAGE_PROMPTS
from models.spec.image_prompts import ImagePrompt
from models.spec.model_spec import Limits, ModelSpec, Need, Task
from models.spec.option import Option
from models.spec.quality_presets import OPTIMIZATIONS, Optimization

DEFAULT_LATENTS = 128
"""Side of an image in latents if the UNet's config has no `sample_size`."""

SCHEDULERS: Mapping[str, Mapping[str, Option]] = {
    name: options
    for name, options in OPTIONS.items()
    if not name.lower().replace("_", "").startswith("flowmatch")
}
"""Supported schedulers: all except those for flow-matching networks."""

WITH_ETA = tuple(name for name, options in SCHEDULERS.items() if "eta" in options)
"""Schedulers for which the request field `eta` has an effect."""

SDXL_OPTIMIZATIONS: frozenset[Optimization] = OPTIMIZATIONS - {"step_cache"}
"""Optimizations available to SDXL: all except adaptive step caching.

The adaptive cache needs a stack of equal blocks, where the first predicts the others' change. A
UNet has none. A fixed schedule that skips all but the outermost level remains available.
"""

MAX_IMAGE_PROMPTS = 4
"""Image prompts per request; each count compiles its own program."""

DEFAULTS: Mapping[str, Any] = {"num_inference_steps": 50, "guidance_scale": 5.0}
DEFAULT_SCORES: Mapping[str, Any] = {"aesthetic_score": 6.0, "negative_aesthetic_score": 2.5}
TASK_DEFAULTS: Mapping[Task, Mapping[str, Any]] = {
    "image-to-image": {"strength": 0.3},
    "inpainting": {"strength": 0.9999, "guidance_scale": 7.5},
}
"""Defaults of request fields per task, as in diffusers' pipelines."""

SCORES = frozenset(DEFAULT_SCORES)
TARGETS = frozenset({"target_size", "negative_target_size"})
SECOND_TEXTS = frozenset({"prompt_2", "negative_prompt_2"})
"""Request fields with prompts for the second text encoder."""
NEGATIVE = frozenset(name for name in FIELDS if name.startswith("negative_"))
SIZES = frozenset(name for name in FIELDS if name.endswith(("_size", "crops_coords_top_left")))


def make_spec(
    name: str,
    fingerprint: str,
    parts: Parts,
    chosen: Mapping[str, Any],
    scheduler: str,
    *,
    force_zeros_for_empty_prompt: bool = True,
    image_prompts: Mapping[str, ImagePrompt] | None = None,
    refiner: Mapping[str, tuple[Need, ...]] | None = None,
    config_digest: str = "",
) -> ModelSpec:
    """Build the `ModelSpec` of an SDXL checkpoint.

    Chosen defaults override diffusers': those of the folder, then those of the operator.

    Args:
        scheduler: class name of the checkpoint's scheduler in diffusers.
        force_zeros_for_empty_prompt: value in `model_index.json`.
        image_prompts: the model's IP-Adapters by name.
        refiner: request fields that a refiner adds, with their needs.
        config_digest: digest of all its configs.

    Raises: ValueError: a default for a field that SDXL does not have.
    """
    unet, vae = parts.unet, parts.vae
    fields = fields_of(parts) | ({IMAGE_PROMPTS} if image_prompts else set())
    fields |= (refiner or {}).keys()
    unknown = sorted(chosen.keys() - {*fields, HIRES})
    if unknown:
        raise ValueError(f"defaults of {name!r} name fields that it does not have: {unknown}")
    height, width = (side * vae.downsampling for side in _latents(unet))
    tasks = tasks_of(parts)
    defaults = {**DEFAULTS, "width": width, "height": height}
    defaults |= DEFAULT_SCORES if parts.scored else {}
    return ModelSpec(
        name=name,
        family="sdxl",
        tasks=tasks,
        fields=fields,
        defaults={**defaults, **chosen},
        task_defaults={
            task: {**values, **chosen} for task, values in TASK_DEFAULTS.items() if task in tasks
        },
        strength_rounds="down",
        sized_by_image=("image-to-image",),
        needs={
            name: needs
            for name, needs in needs_of(parts, silent=force_zeros_for_empty_prompt).items()
            if name in fields
        }
        | dict(refiner or {}),
        limits=limits_of(parts, width, height, MAX_IMAGE_PROMPTS if image_prompts else 0),
        schedulers=SCHEDULERS,
        scheduler=scheduler,
        evaluations={name: of for name, of in EVALUATIONS.items() if name in SCHEDULERS},
        step_lists={scheduler: STEP_LISTS[scheduler] for scheduler in SCHEDULERS},
        sigmas_are="noise levels",
        image_prompts=image_prompts or {},
        embedding_sizes={
            name: tower.hidden_size
            for name, tower in (("clip", parts.clip), ("clip_2", parts.clip_2))
            if tower is not None
        },
        bucket_fields=("width", "height"),
        fingerprint=fingerprint,
        config_digest=config_digest,
    )


def limits_of(parts: Parts, width: int, height: int, max_image_prompts: int) -> Limits:
    """Return the request limits of an SDXL checkpoint with this default image size."""
    down, towers = parts.vae.downsampling, parts.towers
    return Limits(
        size_multiple_px=down,
        min_side_px=down * parts.unet.downsampling,
        max_side_px=2 * max(width, height),
        max_pixels=4 * width * height,
        max_steps=1000,
        max_images=16,
        max_sequence_length=min(tower.max_position_embeddings for tower in towers),
        max_image_prompts=max_image_prompts,
        max_clip_skip=min(tower.num_hidden_layers for tower in towers) - 1,
    )


def fields_of(parts: Parts) -> frozenset[str]:
    """Return the request fields of an SDXL checkpoint.

    UNets with distilled guidance have no negative fields, since they run without a second prompt.
    UNets without size inputs have no size fields. A model takes either a target size or an
    aesthetic score. Refiner fields are added separately (`models.sdxl.refiner_checkpoint`).
    """
    unet = parts.unet
    guidance_fields = (
        NEGATIVE | {"guidance_rescale"} if unet.time_cond_proj_dim is not None else set()
    )
    second_fields = SECOND_TEXTS if parts.clip is None else set()
    size_fields = SIZES if unet.addition_embed_type is None else set()
    refiner_fields = {REFINER} | (TARGETS if parts.scored else SCORES)
    return FIELDS - guidance_fields - second_fields - size_fields - refiner_fields


def needs_of(parts: Parts, *, silent: bool) -> dict[str, tuple[Need, ...]]:
    """Return the conditions under which each request field takes effect, as in diffusers.

    diffusers' pipelines differ in the negative sizes.

    Args:
        silent: whether zeros replace the embeddings if there is no negative prompt.
    """
    guided = Need(field="guidance_scale", above=1)
    from_text: tuple[Task, ...] = ("text-to-image",)
    original, target = (
        Need(field=f"negative_{name}_size", tasks=from_text) for name in ("original", "target")
    )
    crop = (guided, Need(field="task", among=from_text), original, target)
    needs: dict[str, tuple[Need, ...]] = {
        "negative_prompt": (guided,),
        "negative_prompt_2": (guided, Need(field="negative_prompt"))[: 1 + silent],
        "guidance_rescale": (guided,),
        "negative_original_size": (guided, target),
        "negative_target_size": (guided, original),
        "negative_crops_coords_top_left": crop,
        "negative_aesthetic_score": (guided,),
        "eta": (Need(field="scheduler", among=WITH_ETA),),
    }
    optional = ("negative_original_size", "negative_crops_coords_top_left") if parts.scored else ()
    return {**needs, **{name: (guided,) for name in optional}}


def tasks_of(parts: Parts) -> tuple[Task, ...]:
    """Return the tasks of an SDXL checkpoint: those of diffusers' pipelines that accept it.

    A UNet with input channels for a mask and a masked image supports inpainting only. A refiner
    needs an input image.

    Raises: ValueError: an unsupported number of input channels.
    """
    unet, latent = parts.unet, parts.vae.latent_channels
    if unet.in_channels == latent:
        from_image: tuple[Task, ...] = ("image-to-image", "inpainting")
        return from_image if parts.scored else ("text-to-image", *from_image)
    if unet.in_channels == 2 * latent + 1:
        return ("inpainting",)
    raise ValueError(
        f"unet in_channels {unet.in_channels} is not served: with vae latent_channels {latent} it "
        f"should be {latent}, or {2 * latent + 1} for inpainting"
    )


def _latents(unet: UNetConfig) -> tuple[int, int]:
    """Return the height and width, in latents, that the UNet was trained on."""
    size = unet.sample_size or DEFAULT_LATENTS
    return (size, size) if isinstance(size, int) else (size[0], size[1])
