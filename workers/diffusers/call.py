"""Call of a pipeline for one image: a resolved request to its arguments, its output to pixels."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image

from models.interface.images import open_image
from models.interface.pipeline import Fields
from models.spec.model_spec import ModelSpec
from models.spec.request_images import SINGLE_IMAGE_FIELDS, listed_paths
from service.jobs.model.job import JobError
from workers.engine.errors import GenerationFailed
from workers.programs.warmup import grey_image

RENAMED: Mapping[str, str] = {"fps": "frame_rate"}
"""Request fields with another name in diffusers."""
FIXED: Mapping[str, Any] = {
    "num_images_per_prompt": 1,
    "num_videos_per_prompt": 1,
    "use_resolution_binning": False,
    "output_type": "pil",
}
"""Arguments that every call sets, where the pipeline has them: one image of exactly this size."""


def parameters_of(pipeline: Any) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a pipeline's call."""
    return inspect.signature(type(pipeline).__call__).parameters


def argument_of(field: str, pipeline: Any) -> str | None:
    """Return the pipeline's argument for a request field; None: it has none.

    The argument `image` of a ControlNet pipeline that starts from noise is its control image.
    """
    parameters = parameters_of(pipeline)
    name = RENAMED.get(field, field)
    if "controlnet" in pipeline.components and not {"strength", "control_image"} & {*parameters}:
        name = {"image": "", "control_image": "image"}.get(field, name)
    return name if name in parameters else None


def arguments(
    pipeline: Any, fields: Fields, images: Mapping[str, bytes], served: Collection[str]
) -> dict[str, Any]:
    """Return the arguments of a diffusers pipeline's call.

    Args:
        fields: one image's resolved request.
        images: its images by path, as file bytes.
        served: request fields of the model.

    Raises: RequestError: an image cannot be read.
    """
    parameters = parameters_of(pipeline)
    values = {name: value for name, value in fields.items() if value is not None}
    values |= opened(pipeline, fields, images)
    named = {argument_of(name, pipeline): value for name, value in values.items() if name in served}
    named.pop(None, None)
    fixed = {name: value for name, value in FIXED.items() if name in parameters}
    generator = torch.Generator("cpu").manual_seed(fields["seed"])
    return {**named, **fixed, "generator": generator}  # type: ignore[dict-item]


def opened(pipeline: Any, fields: Fields, images: Mapping[str, bytes]) -> dict[str, Any]:
    """Return a request's images by field, resized if the pipeline takes its size from them."""
    files: dict[str, Any] = {
        name: open_image(images[name], name) for name in SINGLE_IMAGE_FIELDS if name in images
    }
    if "width" not in parameters_of(pipeline):
        size, lanczos = (fields["width"], fields["height"]), Image.Resampling.LANCZOS
        files = {name: image.resize(size, lanczos) for name, image in files.items()}
    paths = listed_paths(images, "reference_images")
    if references := [open_image(images[path], path) for path in paths]:
        files["image"] = [*([files["image"]] if "image" in files else []), *references]
    return files


def stand_ins(spec: ModelSpec) -> dict[str, bytes]:
    """Return grey images for a warm-up request of a model's first task."""
    by_task = {"image-to-image": {"image"}, "image-to-video": {"image"}}
    by_task["inpainting"] = {"image", "mask_image"}
    return dict.fromkeys(by_task.get(spec.tasks[0], set()) | spec.needed, grey_image())


def pixels_of(output: Any) -> np.ndarray:
    """Return a pipeline's output as uint8 [height, width, 3]; video [frames, height, width, 3].

    Raises: GenerationFailed: the checkpoint's own safety checker has blackened it.
    """
    if any(getattr(output, "nsfw_content_detected", None) or ()):
        message = "the checkpoint's own safety checker refuses the output"
        raise GenerationFailed(JobError(code="refused_by_safety", message=message))
    if hasattr(output, "frames"):
        return np.stack([np.asarray(frame.convert("RGB")) for frame in output.frames[0]])
    return np.asarray(output.images[0].convert("RGB"))
