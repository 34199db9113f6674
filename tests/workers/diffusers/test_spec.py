"""Specs of pipelines: tasks, fields, defaults and limits, from signatures and configs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
from diffusers import (
    FluxKontextPipeline,
    LTXImageToVideoPipeline,
    StableDiffusionControlNetPipeline,
    StableDiffusionInpaintPipeline,
)

from models.spec.model_spec import ModelSpec
from service.errors.problems import Invalid
from service.schemas.request import GenerateRequest
from service.settings.limits import LimitSettings
from service.validation.resolved_fields import resolve
from tests.workers.diffusers import tiny
from workers.diffusers.call import argument_of
from workers.diffusers.load import LoadedPipelines, with_further_tasks
from workers.diffusers.spec import fields_of, limits_of, multiple_of, spec_of, task_of

pytestmark = pytest.mark.filterwarnings("ignore:::diffusers", "ignore:::transformers")

COMMON = {"prompt", "seed", "num_images", "width", "height", "num_inference_steps"}


def resolved(spec: ModelSpec, **fields: Any) -> dict[str, Any]:
    request = GenerateRequest(prompt="a star", **fields)
    return resolve(request, spec, LimitSettings()).fields


def refused(spec: ModelSpec, **fields: Any) -> list[str]:
    """Return the fields that admission refuses."""
    with pytest.raises(Invalid) as invalid:
        resolved(spec, **fields)
    return sorted({error.field for error in invalid.value.errors})


def test_stable_diffusion(pipelines: LoadedPipelines) -> None:
    spec = pipelines.spec
    assert spec.tasks == ("text-to-image", "image-to-image", "inpainting")
    assert spec.fields == COMMON | {
        *("negative_prompt", "guidance_scale", "guidance_rescale", "clip_skip"),
        *("image", "mask_image", "strength"),
    }
    assert spec.defaults["guidance_scale"] == 7.5
    assert spec.defaults_for("image-to-image")["strength"] == 0.8
    assert (spec.defaults["width"], spec.limits.max_clip_skip) == (16, 2)
    assert resolved(spec, seed=1)["num_inference_steps"] == 50


@pytest.mark.parametrize(
    "fields, names",
    [
        ({"num_frames": 5}, ["num_frames"]),
        ({"true_cfg_scale": 2.0}, ["true_cfg_scale"]),
        ({"quality": "fast"}, ["quality"]),
        ({"scheduler": {"name": "ddim"}}, ["scheduler"]),
        ({"sigmas": [1.0, 0.5]}, ["sigmas"]),
        ({"hires": {"scale": 2.0}}, ["hires"]),
        ({"loras": [{"name": "coral"}]}, ["loras"]),
        ({"stop_at_step": 2}, ["stop_at_step"]),
        ({"width": 15}, ["width"]),
        ({"clip_skip": 3}, ["clip_skip"]),
    ],
)
def test_admission_refuses_by_name(
    pipelines: LoadedPipelines, fields: dict[str, Any], names: list[str]
) -> None:
    assert refused(pipelines.spec, **fields) == names


@pytest.mark.parametrize(
    "name, task, further, size",
    [
        ("PixArtSigmaPipeline", "text-to-image", {"negative_prompt", "guidance_scale"}, (16, 16)),
        ("CogVideoXPipeline", "text-to-video", {"num_frames", "fps", "eta"}, (16, 16)),
    ],
)
def test_other_pipelines(
    name: str, task: str, further: set[str], size: tuple[int, int], tmp_path: Path
) -> None:
    pipeline = tiny.MAKERS[name]()
    pipeline.save_pretrained(tmp_path)
    spec = spec_of(name, with_further_tasks(pipeline), tmp_path, {}, True)
    assert spec.tasks[0] == task
    assert spec.fields >= COMMON | further
    assert (spec.defaults["width"], spec.defaults["height"]) == size
    limits = spec.limits
    assert spec.defaults.get("num_frames", 1) % limits.frames_multiple == 1 % limits.frames_multiple
    assert resolved(spec)["width"] % limits.size_multiple_px == 0
    assert bool(spec.lora_pages) is ("adapters" not in spec.lacks) is (name == "CogVideoXPipeline")


def test_defaults_of_settings_take_precedence(
    pipelines: LoadedPipelines, stable_diffusion: Path
) -> None:
    chosen = {"num_inference_steps": 20, "strength": 0.4}
    spec = spec_of("sd", pipelines.by_task, stable_diffusion, chosen, False)
    assert spec.defaults_for("inpainting")["strength"] == 0.4
    assert spec.defaults["num_inference_steps"] == 20
    with pytest.raises(ValueError, match="num_frames"):
        spec_of("sd", pipelines.by_task, stable_diffusion, {"num_frames": 5}, False)


class Described:
    """Pipeline without components, of which only the signature is read."""

    components: ClassVar[dict[str, Any]] = {}


def described(kind: type, **components: Any) -> Any:
    """Return an instance of a pipeline class without its components."""
    instance = type("Described", (Described,), {"__call__": kind.__call__})()
    instance.components = components
    return instance


def test_tasks_follow_from_signatures() -> None:
    assert task_of(described(StableDiffusionInpaintPipeline), False) == "inpainting"
    assert task_of(described(LTXImageToVideoPipeline), False) == "image-to-video"
    assert task_of(described(FluxKontextPipeline), True) == "text-to-image"
    control = described(StableDiffusionControlNetPipeline, controlnet=object())
    assert task_of(control, True) == "text-to-image"
    assert argument_of("control_image", control) == "image"
    assert argument_of("image", control) is None
    video = described(LTXImageToVideoPipeline)
    assert argument_of("fps", video) == "frame_rate" and "fps" in fields_of(video)


def test_limits_are_multiples_of_the_defaults() -> None:
    pipeline = described(LTXImageToVideoPipeline)
    pipeline.vae_spatial_compression_ratio, pipeline.vae_temporal_compression_ratio = 32, 8
    limits = limits_of(pipeline, {"width": 704, "height": 512, "num_frames": 161})
    assert multiple_of(pipeline) == limits.size_multiple_px
    assert (limits.max_frames, limits.frames_multiple) == (641, 8)
    assert limits.max_pixels == 4 * 704 * 512
