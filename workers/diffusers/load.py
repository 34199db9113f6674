"""Loading of a checkpoint by diffusers, and what its settings may not ask of it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import torch
import transformers
from diffusers import AutoPipelineForImage2Image, AutoPipelineForInpainting, DiffusionPipeline
from diffusers.pipelines import auto_pipeline

from models.checkpoint.folder import CheckpointError, checkpoint_errors, read_model_index
from models.checkpoint.hub import resolve
from models.checkpoint.object_folder import is_url
from models.interface.finite import IMAGE
from models.spec.model_spec import ModelSpec, Task
from service.settings.models import ModelSettings
from workers.diffusers.call import parameters_of
from workers.diffusers.spec import spec_of, task_of
from workers.engine.errors import DECODERS, not_finite
from workers.engine.place import CPU, Place, place_without_programs

FURTHER: Mapping[Task, Any] = {
    "image-to-image": AutoPipelineForImage2Image,
    "inpainting": AutoPipelineForInpainting,
}
"""Makers of pipelines for further tasks, from the weights of one for text to image."""
SOFTWARE = ("torch", "diffusers", "transformers", "accelerate", "peft")
PREVIEW_LATENTS = 32
"""Maximum side of the latents that a preview decodes; larger ones are averaged down."""

log = logging.getLogger(__name__)


@dataclass
class LoadedPipelines:
    """Pipelines of one checkpoint on a device, which share their weights."""

    spec: ModelSpec
    by_task: Mapping[Task, Any]
    device: torch.device
    offloads: bool
    """Whether networks wait in host memory, each for its turn on the device."""

    @property
    def default(self) -> Any:
        """Pipeline of the checkpoint's first task."""
        return next(iter(self.by_task.values()))

    @cached_property
    def place(self) -> Place:
        """Device of the pipelines, and the software that generates their outputs."""
        if self.device.type != "cpu":
            return place_without_programs(self.spec, "gpu", torch.cuda.get_device_name(), SOFTWARE)
        return place_without_programs(self.spec, CPU, CPU, SOFTWARE, torch.get_num_threads())

    @torch.no_grad()
    def preview(self, pipeline: Any, size: tuple[int, int], latents: Any) -> np.ndarray | None:
        """Decode the latents of an image of this size to a small preview; None: not possible."""
        vae = getattr(pipeline, "vae", None)
        if vae is None or self.offloads or "num_frames" in parameters_of(pipeline):
            return None
        if latents.ndim == 3 and hasattr(pipeline, "_unpack_latents"):
            latents = pipeline._unpack_latents(latents, *size[::-1], pipeline.vae_scale_factor)
        if latents.ndim != 4 or not hasattr(vae.config, "scaling_factor"):
            return None
        shrink = -(-max(latents.shape[-2:]) // PREVIEW_LATENTS)
        small = torch.nn.functional.avg_pool2d(latents, shrink) if shrink > 1 else latents
        shift = getattr(vae.config, "shift_factor", None) or 0.0
        scaled = small / vae.config.scaling_factor + shift
        decoded = vae.decode(scaled.to(vae.dtype), return_dict=False)[0]
        image = pipeline.image_processor.postprocess(decoded, output_type="pil")[0]
        return np.asarray(image.convert("RGB"))


def load(name: str, model: ModelSettings) -> LoadedPipelines:
    """Load a checkpoint onto the first GPU, or the CPU.

    Requests may use adapters if the settings have `lora_pages`, and its pipeline loads them.

    Raises: CheckpointError: diffusers cannot load it, or its pipeline takes no prompt.
    """
    if is_url(model.source):
        raise CheckpointError(f"{model.source}: diffusers reads folders; copy it to this machine")
    folder = resolve(model.source)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with checkpoint_errors(folder):
        pipeline = _loaded(folder, model)
        if offloads := model.cpu_offload and device.type != "cpu":
            pipeline.enable_model_cpu_offload(device=device)
        else:
            pipeline.to(device)
        by_task = with_further_tasks(pipeline)
    if decoder := getattr(getattr(pipeline, "vae", None), "decoder", None):
        decoder.register_forward_hook(check_finite)
        spec = spec_of(name, by_task, folder, model.defaults, bool(model.lora_pages))
    log.info("%s: %s on %s, by diffusers", name, type(pipeline).__name__, device)
    return LoadedPipelines(spec, by_task, device, offloads)


def check_finite(_decoder: Any, _latents: Any, output: Any) -> None:
    """Check that a diffusers decoder's output is finite. Raises: GenerationFailed."""
    if not torch.isfinite(output if torch.is_tensor(output) else output[0]).all():
        raise not_finite(DECODERS["decode", IMAGE])


def _loaded(folder: Path, model: ModelSettings) -> Any:
    class_name = str(read_model_index(folder)["_class_name"])
    if not hasattr(diffusers, class_name):
        raise CheckpointError(
            f"{folder}: diffusers {version('diffusers')} has no {class_name}; a newer one may"
        )
    for library in (diffusers, transformers):
        library.utils.logging.disable_progress_bar()
    pipeline = DiffusionPipeline.from_pretrained(
        folder,
        dtype=getattr(torch, model.dtype),
        use_safetensors=True,
        trust_remote_code=False,
        local_files_only=True,
    )
    if "prompt" not in parameters_of(pipeline):
        raise CheckpointError(f"{folder}: {class_name} takes no prompt, so no request fits it")
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def with_further_tasks(pipeline: Any) -> dict[Task, Any]:
    """Return a checkpoint's pipeline by task, with those that diffusers makes of its weights."""
    of_text = type(pipeline) in auto_pipeline.AUTO_TEXT2IMAGE_PIPELINES_MAPPING.values()
    by_task: dict[Task, Any] = {task_of(pipeline, of_text): pipeline}
    if not of_text:
        return by_task
    for task, maker in FURTHER.items():
        with suppress(ValueError, AttributeError):  # its class has no pipeline for the task
            by_task[task] = maker.from_pipe(pipeline)
            by_task[task].set_progress_bar_config(disable=True)
    return by_task
