"""LTX-2's two stages against diffusers' chain of three pipelines, on small odd checkpoints.

Each stage has a generator of the same seed, as two requests would. Bounds: latents of each step of
both stages to a relative 1e-4, of video and of audio, frames to 60 dB and two grey levels.
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
from models.ltx.latents import places_of
from models.spec.hires import with_defaults
from tests.parity.programs import Programs
from tests.parity.test_flux import assert_far, png
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
    spec = pair.ours.pipeline.spec
    fields = {**spec.defaults, **BASE, **MORE[checkpoint]}
    hires = with_defaults({}, fields, spec.limits.size_multiple_px, spec.enlargers)
    return {**fields, "hires": hires}


def stage(programs: Programs, one: ImagePass) -> tuple[list[Any], list[np.ndarray]]:
    """Return the rows of a pass after each step, and their latents of both streams."""
    pipeline: Any = programs.pipeline
    _, *rows = programs.denoise(one.prepared)
    both = [pipeline.grid.streams(row["latents"], places_of(row)) for row in rows]
    return rows, [np.asarray(latents) for streams in both for latents in streams]


def ours(pair: Pair, fields: Mapping[str, Any], image: Image.Image | None = None) -> Sounding:
    """Draw both passes, as the engine does."""
    pipeline: Any = pair.ours.pipeline
    files = {} if image is None else {"image": png(image)}
    one, other = prepared_passes(pipeline, fields, files)
    assert other is not None
    rows, latents = stage(pair.ours, one)
    start = latents_file(np.asarray(pipeline.spatial(rows[-1])))
    images = {**files, other.begins_with: start}
    known = replace(other, prepared=pipeline.prepare(other.fields, images))
    shapes = [
        {name: (value.shape, value.dtype) for name, value in prepared.inputs.items()}
        for prepared in (known.prepared, other.prepared)
    ]
    assert shapes[0] == shapes[1], "what is unknown is of another shape"
    rows, again = stage(pair.ours, known)
    pixels, sound = pair.ours.decode(pipeline.weights, rows[-1])
    return Sounding([*latents, *again], np.asarray(pixels), np.asarray(sound))


def theirs(pair: Pair, fields: Mapping[str, Any], image: Image.Image | None = None) -> Sounding:
    """Draw by diffusers, as its page on LTX-2 says; the scales of audio are those of video."""
    first: Any = pair.theirs
    latents: list[np.ndarray] = []

    def keep(_pipe: Any, _step: int, _time: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        latents.extend(one[0].numpy().copy() for one in tensors.values())
        return {}

    more: dict[str, Any] = {}
    if image is not None:
        first = LTX2ImageToVideoPipeline(**pair.theirs.components)
        more = {"image": image, "use_cross_timestep": first.transformer.config.cross_attn_mod}
    first._callback_tensor_inputs = ["latents", "audio_latents"]
    first.set_progress_bar_config(disable=True)

    def how() -> dict[str, Any]:
        return {
            **more,
            "generator": torch.Generator("cpu").manual_seed(fields["seed"]),
            "frame_rate": float(fields["fps"]),
            "callback_on_step_end": keep,
            "callback_on_step_end_tensor_inputs": ["latents", "audio_latents"],
            "spatio_temporal_guidance_blocks": [first.transformer.config.num_layers - 1],
            **dict.fromkeys(("audio_stg_scale", "audio_modality_scale", "audio_guidance_rescale")),
        }

    given = {
        name: value
        for name, value in {"stg_scale": 0.0, **fields}.items()
        if name not in ("hires", "seed", "fps", "quality")
    }
    made = first(**given, **how(), output_type="latent")
    upsampler = LTX2LatentUpsamplerModel.from_pretrained(pair.folder / "latent_upsampler")
    upsampling: Any = LTX2LatentUpsamplePipeline(vae=first.vae, latent_upsampler=upsampler)
    size = {name: given[name] for name in ("width", "height")}
    larger = upsampling(latents=made.frames, output_type="latent", **size).frames
    scheduler = FlowMatchEulerDiscreteScheduler.from_config(
        first.scheduler.config, use_dynamic_shifting=False, shift_terminal=None
    )
    second = type(first)(**{**first.components, "scheduler": scheduler})
    second._callback_tensor_inputs = ["latents", "audio_latents"]
    second.set_progress_bar_config(disable=True)
    sigmas = STAGE_2_DISTILLED_SIGMA_VALUES
    unguided = {**dict.fromkeys(("guidance_scale", "audio_guidance_scale", "modality_scale"), 1.0)}
    given |= {**unguided, "stg_scale": 0.0, "guidance_rescale": 0.0}
    given |= {name: fields["hires"][name] for name in size}
    made = second(
        **{**given, "num_inference_steps": len(sigmas), "sigmas": sigmas},
        **how(),
        latents=larger,
        audio_latents=made.audio,
        noise_scale=sigmas[0],
        output_type="np",
    )
    frames = (made.frames[0] * 255).astype(np.uint8)
    return Sounding(latents, frames, made.audio[0].numpy())


@pytest.mark.parametrize("image", [None, FIRST], ids=["text", "image"])
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_two_stages(
    pairs: Mapping[str, Pair], checkpoint: str, image: Image.Image | None, record_property: Any
) -> None:
    pair = pairs[checkpoint]
    fields = asked(pair, checkpoint)
    made, expected = ours(pair, fields, image), theirs(pair, fields, image)
    assert made.picture.shape[1:3] == (2 * fields["height"], 2 * fields["width"])
    assert len(made.latents) == 2 * (fields["num_inference_steps"] + 3)
    assert_alike(made, expected, record_property)


@pytest.mark.parametrize("wrong", ["sigmas", "noise"])
def test_another_second_stage_fails_by_far(
    pairs: Mapping[str, Pair], wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By sigmas that are shifted again, and by noise in the order of the first stage."""
    fields = asked(pairs["2.3"], "2.3")
    expected = theirs(pairs["2.3"], fields)
    if wrong == "sigmas":
        monkeypatch.setattr("models.ltx.pipeline.with_given_sigmas", lambda scheduler: scheduler)
    else:
        monkeypatch.setattr(second_stage, "_noise", lambda grid, *at, **how: grid.noise(*at))
    assert_far(ours(pairs["2.3"], fields), expected)
