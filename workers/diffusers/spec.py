"""Builds the `ModelSpec` of a pipeline, from its call's signature and its components' configs."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.checkpoint.fingerprint import config_digest, fingerprint
from models.checkpoint.folder import chosen_defaults
from models.spec.lora import PAGE_COUNTS
from models.spec.model_spec import Limits, ModelSpec, Need, Task
from workers.diffusers.call import argument_of, parameters_of

FAMILY = "diffusers"
LACKS = ("batches by step", "resume", "layouts", "hires fix")
"""Guarantees of native models that do not hold for diffusers models."""
FIELDS = (
    *("negative_prompt", "prompt_2", "negative_prompt_2", "clip_skip", "max_sequence_length"),
    *("width", "height", "num_frames", "fps", "num_inference_steps", "timesteps", "sigmas", "eta"),
    *("guidance_scale", "guidance_scale_2", "true_cfg_scale", "guidance_rescale", "strength"),
    *("image", "mask_image", "control_image", "last_image", "reference_images"),
)
"""Request fields that a pipeline may have an argument for."""
ALWAYS = ("prompt", "seed", "num_images", "width", "height", "num_inference_steps")
"""Request fields of every model. The size is that of the images, where a pipeline has none."""
IMAGES = ("image", "mask_image", "control_image", "last_image")
SIDE_PX, FRAMES, STEPS, TOKENS = 512, 49, 50, 512
"""Defaults of a pipeline that does not state its own."""
SIDES, AREAS, LENGTHS, MAX_REFERENCES = 4, 4, 4, 4
"""Limits of width, area and frames as multiples of the defaults, and of reference images."""

Pipelines = Mapping[Task, Any]
"""Pipelines that share their weights, by task; the checkpoint's own is the first."""


def spec_of(
    name: str, pipelines: Pipelines, folder: Path, defaults: Mapping[str, Any], adapters: bool
) -> ModelSpec:
    """Build the spec of a checkpoint's pipelines.

    Args:
        defaults: of the model's settings, which override the checkpoint's.
        adapters: whether the settings allow some.

    Raises: ValueError: a default names a field that no pipeline has.
    """
    first, tasks = next(iter(pipelines.values())), tuple(pipelines)
    by_task = {task: fields_of(pipeline) for task, pipeline in pipelines.items()}
    fields = frozenset().union(*by_task.values())
    values = {task: _defaults(pipelines[task], by_task[task]) for task in tasks}
    common = {**values[tasks[0]], **_size(first)}
    chosen = chosen_defaults(name, folder, defaults, fields)
    from_images = tuple(t for t in tasks if t in ("image-to-image", "inpainting"))
    limits = limits_of(first, {**common, **chosen})
    takes_adapters = hasattr(first, "load_lora_weights")
    lengths = ("num_frames", "max_sequence_length")
    return ModelSpec(
        name=name,
        family=FAMILY,
        backend="diffusers",
        lacks=LACKS if takes_adapters else (*LACKS, "adapters"),
        lora_pages=PAGE_COUNTS[-1] if takes_adapters and adapters else 0,  # nothing is reserved
        tasks=tasks,
        fields=fields,
        needed=frozenset({"control_image"} & fields),
        defaults={**common, **chosen},
        task_defaults={
            task: {
                field: value
                for field, value in values[task].items()
                if common.get(field) != value and field not in chosen
            }
            for task in tasks[1:]
        },
        needs={
            field: (Need(field="task", among=served),)
            for field in sorted(fields - {*IMAGES})
            if (served := tuple(t for t in tasks if field in by_task[t])) != tasks
        },
        strength_rounds="down" if "unet" in first.components else "up",
        sized_by_image=from_images,
        sized_within_px=limits.max_pixels if from_images else None,
        limits=limits,
        bucket_fields=("width", "height", *(field for field in lengths if field in fields)),
        fingerprint=fingerprint(folder),
        config_digest=config_digest(folder),
    )


def fields_of(pipeline: Any) -> frozenset[str]:
    """Return the request fields that a pipeline has arguments for."""
    fields = {field for field in FIELDS if argument_of(field, pipeline)}
    fields -= {name for name in ("timesteps", "sigmas", "eta") if not _schedules(pipeline, name)}
    if _is_video(pipeline):
        fields.add("fps")  # of the file, if not of the frames
    if _lists_images(pipeline):
        fields.add("reference_images")
    return frozenset({*fields, *ALWAYS})


def _schedules(pipeline: Any, name: str) -> bool:
    """Return whether a pipeline's scheduler accepts `timesteps`, `sigmas` or `eta`, as named."""
    scheduler = getattr(pipeline, "scheduler", None)
    if scheduler is None or (name == "sigmas" and "FlowMatch" not in type(scheduler).__name__):
        return False  # sigmas of others are noise levels
    method = scheduler.step if name == "eta" else scheduler.set_timesteps
    return name in inspect.signature(method).parameters


def _is_video(pipeline: Any) -> bool:
    return "num_frames" in parameters_of(pipeline)


def _lists_images(pipeline: Any) -> bool:
    """Return whether a pipeline accepts several images for one output."""
    image = parameters_of(pipeline).get("image")
    kind = str(image.annotation).replace("List", "list") if image else ""
    return "list[PIL.Image.Image]" in kind and "Tensor" not in kind


def task_of(pipeline: Any, is_text_to_image: bool) -> Task:
    """Return the task of a checkpoint's pipeline, by its images and diffusers' list of classes."""
    takes = {name for name in IMAGES if argument_of(name, pipeline)}
    if _is_video(pipeline):
        return "image-to-video" if "image" in takes else "text-to-video"
    if "mask_image" in takes:
        return "inpainting"
    return "image-to-image" if "image" in takes and not is_text_to_image else "text-to-image"


def _defaults(pipeline: Any, fields: frozenset[str]) -> dict[str, Any]:
    """Return the numeric defaults of a diffusers pipeline's call."""
    parameters = parameters_of(pipeline)
    named = {field: argument_of(field, pipeline) for field in sorted(fields)}
    values = {field: parameters[name].default for field, name in named.items() if name}
    numbers = {field: value for field, value in values.items() if type(value) in (int, float)}
    return {"num_inference_steps": STEPS, **numbers}


def _size(pipeline: Any) -> dict[str, int]:
    """Return a pipeline's default size, a whole multiple of what it can generate."""
    parameters, multiple = parameters_of(pipeline), multiple_of(pipeline)
    size = {}
    for name in ("width", "height"):
        stated = parameters[name].default if name in parameters else None
        latent = _config(pipeline, f"sample_{name}")
        side = stated or (latent and latent * _factor(pipeline)) or _usual_side(pipeline)
        size[name] = max(multiple, side // multiple * multiple)
    if _is_video(pipeline):
        frames = parameters["num_frames"].default or _config(pipeline, "sample_frames")
        size["num_frames"] = frames or FRAMES
    return size


def _usual_side(pipeline: Any) -> int:
    """Return the side of the images that a pipeline was trained for, in pixels."""
    latent = getattr(pipeline, "default_sample_size", None) or _config(pipeline, "sample_size")
    side = max(latent) if isinstance(latent, (tuple, list)) else latent
    return getattr(pipeline, "target_size", 0) or (side and side * _factor(pipeline)) or SIDE_PX


def multiple_of(pipeline: Any) -> int:
    """Return the multiple of a pipeline's width and height: pixels of a latent, times its patch."""
    patch = _config(pipeline, "patch_size") or getattr(pipeline, "patch_size", 1)
    patch = patch[-1] if isinstance(patch, (tuple, list)) else patch
    if patch == 1 and hasattr(pipeline, "_pack_latents"):
        patch = 2
    return _factor(pipeline) * int(patch)


def _factor(pipeline: Any, kind: str = "spatial") -> int:
    """Return the pixels of a latent's side, or the frames of a latent."""
    names = [f"vae_scale_factor_{kind}", f"vae_{kind}_compression_ratio"]
    names += ["vae_scale_factor"] if kind == "spatial" else []
    factors = (getattr(pipeline, name, None) for name in names)
    return int(next(filter(None, factors), 8 if kind == "spatial" else 1))


def _config(pipeline: Any, name: str) -> Any:
    """Return a value of the denoising network's config in a pipeline; None: it has none."""
    network = getattr(pipeline, "transformer", None) or getattr(pipeline, "unet", None)
    return getattr(network.config, name, None) if network is not None else None


def limits_of(pipeline: Any, defaults: Mapping[str, Any]) -> Limits:
    """Return the limits of requests, as multiples of the defaults."""
    multiple, frames = multiple_of(pipeline), _factor(pipeline, "temporal")
    longest = max(defaults["width"], defaults["height"])
    text = getattr(getattr(pipeline, "text_encoder", None), "config", None)
    return Limits(
        size_multiple_px=multiple,
        min_side_px=multiple,
        max_side_px=SIDES * math.ceil(longest / multiple) * multiple,
        max_pixels=AREAS * defaults["width"] * defaults["height"],
        max_frames=LENGTHS * (defaults.get("num_frames", 1) - 1) // frames * frames + 1,
        frames_multiple=frames,
        max_steps=1000,
        max_images=4,
        max_sequence_length=defaults.get("max_sequence_length", TOKENS),
        max_clip_skip=max(0, getattr(text, "num_hidden_layers", 1) - 1),
        max_reference_images=MAX_REFERENCES if _lists_images(pipeline) else 0,
    )
