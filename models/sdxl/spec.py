"""Spec of an SDXL checkpoint for the API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.sampling.registry import OPTIONS, STEP_LISTS
from models.sdxl.compatibility import Parts
from models.sdxl.config import UNetConfig
from models.sdxl.request import FIELDS
from models.spec.hires import FIELD as HIRES
from models.spec.image_prompts import FIELD as IMAGE_PROMPTS
from models.spec.image_prompts import ImagePrompt
from models.spec.model_spec import Limits, ModelSpec, Need, Task
from models.spec.option import Option
from models.spec.quality_presets import LEVERS, Lever
from models.spec.refiner import FIELD as REFINER

DEFAULT_LATENTS = 128
"""The side of an image in latents where the UNet's config names none."""

SCHEDULERS: Mapping[str, Mapping[str, Option]] = {
    name: options
    for name, options in OPTIONS.items()
    if name not in ("flow_match_euler", "FlowMatchEulerDiscreteScheduler")
}
"""Schedulers without those for networks that predict a flow."""

SDXL_LEVERS: frozenset[Lever] = LEVERS - {"step_cache"}
"""A UNet is no row of equal blocks, of which the first would tell of the others. By a plan all but
its outermost level is left out."""

MAX_IMAGE_PROMPTS = 4
"""Image prompts of one request: each number of them is a program of its own."""

OWN_DEFAULTS: Mapping[str, Any] = {"num_inference_steps": 50, "guidance_scale": 5.0}
OWN_SCORES: Mapping[str, Any] = {"aesthetic_score": 6.0, "negative_aesthetic_score": 2.5}
TASK_DEFAULTS: Mapping[Task, Mapping[str, Any]] = {
    "image-to-image": {"strength": 0.3},
    "inpainting": {"strength": 0.9999, "guidance_scale": 7.5},
}
"""Defaults of diffusers' pipelines."""

SCORES = frozenset(OWN_SCORES)
TARGETS = frozenset({"target_size", "negative_target_size"})
SECOND_TEXTS = frozenset({"prompt_2", "negative_prompt_2"})
"""Texts for the second of two encoders."""
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
    """Defaults are diffusers' own, then the chosen ones: the folder's, then the operator's.

    Args:
        scheduler: the checkpoint's own, by diffusers' class.
        force_zeros_for_empty_prompt: of `model_index.json`.
        image_prompts: its IP-Adapters by name.
        refiner: fields that come with a refiner, and their needs.
        config_digest: of all its configs.

    Raises: ValueError: a chosen default is of no field that SDXL has.
    """
    unet, vae = parts.unet, parts.vae
    fields = fields_of(parts) | ({IMAGE_PROMPTS} if image_prompts else set())
    fields |= (refiner or {}).keys()
    unknown = sorted(chosen.keys() - {*fields, HIRES})
    if unknown:
        raise ValueError(f"defaults of {name!r} name fields that it does not have: {unknown}")
    height, width = (side * vae.downsampling for side in _latents(unet))
    tasks = tasks_of(parts)
    own = {**OWN_DEFAULTS, "width": width, "height": height}
    own |= OWN_SCORES if parts.scored else {}
    return ModelSpec(
        name=name,
        family="sdxl",
        tasks=tasks,
        fields=fields,
        defaults={**own, **chosen},
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
        step_lists={scheduler: STEP_LISTS[scheduler] for scheduler in SCHEDULERS},
        sigmas_are="noise levels",
        image_prompts=image_prompts or {},
        bucket_fields=("width", "height"),
        fingerprint=fingerprint,
        config_digest=config_digest,
    )


def limits_of(parts: Parts, width: int, height: int, max_image_prompts: int) -> Limits:
    """Return the limits of a checkpoint whose images have that size by default."""
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
    """Return the request fields of a checkpoint.

    Nothing negative where guidance is distilled into the UNet, which runs without a second prompt;
    no sizes where it has no input for them; a target size or an aesthetic score. The refiner's own
    come with one (`models.sdxl.refiner_checkpoint`).
    """
    unet = parts.unet
    unguided = NEGATIVE | {"guidance_rescale"} if unet.time_cond_proj_dim is not None else set()
    unread = SECOND_TEXTS if parts.clip is None else set()
    untold = SIZES if unet.addition_embed_type is None else set()
    never = {REFINER} | (TARGETS if parts.scored else SCORES)
    return FIELDS - unguided - unread - untold - never


def needs_of(parts: Parts, *, silent: bool) -> dict[str, tuple[Need, ...]]:
    """Return needs as in diffusers, whose pipelines differ in the negative sizes.

    Args:
        silent: whether the UNet gets zeros where there is no negative prompt.
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
        "eta": (Need(field="scheduler", among=("ddim", "DDIMScheduler")),),
    }
    alone = ("negative_original_size", "negative_crops_coords_top_left") if parts.scored else ()
    return {**needs, **{name: (guided,) for name in alone}}


def tasks_of(parts: Parts) -> tuple[Task, ...]:
    """Return the tasks of a checkpoint: those of diffusers' pipelines that take it.

    A UNet with room for a mask and a masked image beside the latents knows nothing else. A refiner
    draws from images alone.

    Raises: ValueError: a UNet that takes neither latents alone nor all of those.
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
    """Height and width that the UNet was trained on."""
    size = unet.sample_size or DEFAULT_LATENTS
    return (size, size) if isinstance(size, int) else (size[0], size[1])
