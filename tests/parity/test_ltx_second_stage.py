"""LTX-2's two stages compared with diffusers' chain of three pipelines, on small odd checkpoints.

Each stage has a generator of the same seed, like two requests. Bounds: latents of each step of both
stages to a relative 1e-4, for video and audio; frames to 60 dB and two grey levels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import (
    FlowMatchEulerDiscreteScheduler,
    LTX2ImageToVideoPipeline,
    LTX2LatentUpsamplePipeline,
)
from diffusers.pipelines.ltx2.latent_upsampler import LTX2LatentUpsamplerModel
from diffusers.pipelines.ltx2.utils import STAGE_2_DISTILLED_SIGMA_VALUES
from PIL import Image

from models.interface.image_start import latents_file
from models.ltx import second_stage
from models.ltx.latents import latent_sizes_of
from models.spec.hires import with_defaults
from tests.parity.distances import png
from tests.parity.programs import Programs
from tests.parity.test_flux import assert_far
from tests.parity.test_ltx import (
    BASE,
    CHECKPOINTS,
    FIRST,
    STG,
    Pair,
    Sounding,
    assert_alike,
    pairs,
    pytestmark,
)
from workers.engine.passes import ImagePass, prepared_passes

__all__ = ["pairs", "pytestmark"]

MORE = {
    "2.3": {**STG, "num_inference_steps": 2, "negative_prompt": "a star"},
    "2.0, odd": {"max_sequence_length": 45, "num_inference_steps": 2},
}


def asked(pair: Pair, checkpoint: str) -> dict[str, Any]:
    spec = pair.atelier.pipeline.spec
    fields = {**spec.defaults, **BASE, **MORE[checkpoint]}
    hires = with_defaults({}, fields, spec.limits.size_multiple_px, spec.enlargers)
    return {**fields, "hires": hires}


def stage(programs: Programs, image_pass: ImagePass) -> tuple[list[Any], list[np.ndarray]]:
    """Return the rows of a pass after each step, and their latents of both streams."""
    pipeline: Any = programs.pipeline
    _, *rows = programs.denoise(image_pass.prepared)
    streams_of_rows = [pipeline.grid.streams(row["latents"], latent_sizes_of(row)) for row in rows]
    return rows, [np.asarray(latents) for streams in streams_of_rows for latents in streams]


def run_atelier(
    pair: Pair, fields: Mapping[str, Any], image: Image.Image | None = None
) -> Sounding:
    """Run both passes as the engine does."""
    pipeline: Any = pair.atelier.pipeline
    files = {} if image is None else {"image": png(image)}
    first, second = prepared_passes(pipeline, fields, files)
    assert second is not None
    rows, latents = stage(pair.atelier, first)
    start = latents_file(np.asarray(pipeline.spatial(rows[-1])))
    images = {**files, second.begins_with: start}
    prepared_second = replace(second, prepared=pipeline.prepare(second.fields, images))
    shapes = [
        {name: (value.shape, value.dtype) for name, value in prepared.inputs.items()}
        for prepared in (prepared_second.prepared, second.prepared)
    ]
    assert shapes[0] == shapes[1], "placeholder inputs have another shape"
    rows, latents_of_second = stage(pair.atelier, prepared_second)
    pixels, sound = pair.atelier.decode(pipeline.weights, rows[-1])
    return Sounding([*latents, *latents_of_second], np.asarray(pixels), np.asarray(sound))


def run_diffusers(
    pair: Pair, fields: Mapping[str, Any], image: Image.Image | None = None
) -> Sounding:
    """Generate with diffusers as its page on LTX-2 describes; audio scales default to those of
    video.
    """
    first: Any = pair.diffusers
    latents: list[np.ndarray] = []

    def keep(_pipe: Any, _step: int, _time: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        latents.extend(stream[0].numpy().copy() for stream in tensors.values())
        return {}

    extra: dict[str, Any] = {}
    if image is not None:
        first = LTX2ImageToVideoPipeline(**pair.diffusers.components)
        extra = {"image": image, "use_cross_timestep": first.transformer.config.cross_attn_mod}
    first._callback_tensor_inputs = ["latents", "audio_latents"]
    first.set_progress_bar_config(disable=True)

    def options() -> dict[str, Any]:
        return {
            **extra,
            "generator": torch.Generator("cpu").manual_seed(fields["seed"]),
            "frame_rate": float(fields["fps"]),
            "callback_on_step_end": keep,
            "callback_on_step_end_tensor_inputs": ["latents", "audio_latents"],
            "spatio_temporal_guidance_blocks": [first.transformer.config.num_layers - 1],
            **dict.fromkeys(("audio_stg_scale", "audio_modality_scale", "audio_guidance_rescale")),
        }

    arguments = {
        name: value
        for name, value in {"stg_scale": 0.0, **fields}.items()
        if name not in ("hires", "seed", "fps", "quality")
    }
    output = first(**arguments, **options(), output_type="latent")
    upsampler = LTX2LatentUpsamplerModel.from_pretrained(pair.folder / "latent_upsampler")
    upsampling: Any = LTX2LatentUpsamplePipeline(vae=first.vae, latent_upsampler=upsampler)
    size = {name: arguments[name] for name in ("width", "height")}
    larger = upsampling(latents=output.frames, output_type="latent", **size).frames
    scheduler = FlowMatchEulerDiscreteScheduler.from_config(
        first.scheduler.config, use_dynamic_shifting=False, shift_terminal=None
    )
    second = type(first)(**{**first.components, "scheduler": scheduler})
    second._callback_tensor_inputs = ["latents", "audio_latents"]
    second.set_progress_bar_config(disable=True)
    sigmas = STAGE_2_DISTILLED_SIGMA_VALUES
    unguided = {**dict.fromkeys(("guidance_scale", "audio_guidance_scale", "modality_scale"), 1.0)}
    arguments |= {**unguided, "stg_scale": 0.0, "guidance_rescale": 0.0}
    arguments |= {name: fields["hires"][name] for name in size}
    output = second(
        **{**arguments, "num_inference_steps": len(sigmas), "sigmas": sigmas},
        **options(),
        latents=larger,
        audio_latents=output.audio,
        noise_scale=sigmas[0],
        output_type="np",
    )
    frames = (output.frames[0] * 255).astype(np.uint8)
    return Sounding(latents, frames, output.audio[0].numpy())


@pytest.mark.parametrize("image", [None, FIRST], ids=["text", "image"])
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_two_stages(
    pairs: Mapping[str, Pair], checkpoint: str, image: Image.Image | None, record_property: Any
) -> None:
    pair = pairs[checkpoint]
    fields = asked(pair, checkpoint)
    result, expected = run_atelier(pair, fields, image), run_diffusers(pair, fields, image)
    assert result.image.shape[1:3] == (2 * fields["height"], 2 * fields["width"])
    assert len(result.latents) == 2 * (fields["num_inference_steps"] + 3)
    assert_alike(result, expected, record_property)


@pytest.mark.parametrize("wrong", ["sigmas", "noise"])
def test_other_second_stage_breaks_parity(
    pairs: Mapping[str, Pair], wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wrong variants: sigmas shifted twice, or noise in the order of the first stage."""
    fields = asked(pairs["2.3"], "2.3")
    expected = run_diffusers(pairs["2.3"], fields)
    if wrong == "sigmas":
        monkeypatch.setattr("models.ltx.pipeline.without_shift", lambda scheduler: scheduler)
    else:
        monkeypatch.setattr(second_stage, "_noise", lambda grid, *at, **how: grid.noise(*at))
    assert_far(run_atelier(pairs["2.3"], fields), expected)
