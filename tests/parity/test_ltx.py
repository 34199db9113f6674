"""LTX-2 compared with diffusers' pipelines in the same process, on small odd checkpoints.

Bounds: latents of each step to a relative 1e-4, for video and audio. Frames (truncated to bytes as
by `export_to_video`) to 60 dB and two grey levels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import LTX2ImageToVideoPipeline, LTX2Pipeline
from PIL import Image

from models.ltx.latents import latent_sizes_of
from models.ltx.load import load
from models.spec.request import RequestError
from tests import coarse
from tests.parity.distances import png, relative
from tests.parity.lazy_dict import LazyDict
from tests.parity.programs import Programs
from tests.parity.test_flux import RELATIVE, Result, assert_far, assert_same
from tests.parity.tiny_ltx_pipeline import ODD, make_ltx

pytestmark = [
    pytest.mark.filterwarnings("ignore:Accessing config attribute:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning"),
]

CHECKPOINTS: dict[str, dict[str, Any]] = {"2.3": {}, "2.0, odd": {"like": ODD, "seed": 20}}
BASE: dict[str, Any] = {
    "prompt": " a red circle on a blue background ",
    "seed": 1234,
    "width": 96,
    "height": 96,
    "num_frames": 9,
    "fps": 24,
    "num_inference_steps": 3,
    "guidance_scale": 3.0,
    "audio_guidance_scale": 5.0,
    "modality_scale": 2.5,
    "guidance_rescale": 0.6,
    "max_sequence_length": 60,
}
STG = {"stg_scale": 1.5}
UNGUIDED = {"guidance_scale": 1.0, "audio_guidance_scale": 1.0, "modality_scale": 1.0}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "2.3, all guidance": ("2.3", {**STG, "negative_prompt": "a star"}),
    "2.3, no guidance, own sigmas, short and slow": (
        "2.3",
        {
            **UNGUIDED,
            "stg_scale": 0.0,
            "sigmas": [1.0, 0.9, 0.35],
            "num_frames": 5,
            "fps": 11,
            "width": 160,
        },
    ),
    "2.3, guided only by perturbed blocks": (
        "2.3",
        {**UNGUIDED, "stg_scale": 2.0, "guidance_rescale": 0.0, "num_inference_steps": 2},
    ),
    "2.0, odd": ("2.0, odd", {"max_sequence_length": 45, "negative_prompt": "a blue triangle"}),
}
FROM_IMAGE = {"2.3": {**STG}, "2.0, odd": {"max_sequence_length": 45}}
FIRST = Image.fromarray(
    np.random.default_rng(5).integers(0, 256, (5, 7, 3), dtype=np.uint8)
).resize((183, 111), Image.Resampling.BILINEAR)


@dataclass(frozen=True)
class Sounding(Result):
    """Video with its sound."""

    sound: np.ndarray


def assert_alike(output: Sounding, expected: Sounding, record: Any) -> None:
    """Assert that latents of each step, frames and sound are equal within the bounds."""
    assert_same(output, expected, record)
    assert output.sound.shape == expected.sound.shape
    gap = relative(output.sound, expected.sound)
    record("sound_relative", gap)
    assert gap < RELATIVE and expected.sound.std() > 0.01, gap


class Pair:
    """One checkpoint, loaded by diffusers and by Atelier."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self.folder = make_ltx(folder, **config)
        self.diffusers: Any = LTX2Pipeline.from_pretrained(self.folder)
        with coarse.compiled():
            loaded = load("tiny", self.folder, "float32")
        self.atelier = Programs(loaded, coarse.OPTIONS)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Pair]:
    root = tmp_path_factory.mktemp("ltx")
    return LazyDict(lambda name: Pair(root / name, CHECKPOINTS[name]))


def run_diffusers(
    pair: Pair, request: Mapping[str, Any], image: Image.Image | None = None
) -> Sounding:
    """Generate with diffusers; audio scales default to those of video."""
    pipeline = pair.diffusers
    blocks = pipeline.transformer.config.num_layers - 1
    extra: dict[str, Any] = {"stg_scale": 0.0, "spatio_temporal_guidance_blocks": [blocks]}
    if image is not None:
        pipeline = LTX2ImageToVideoPipeline(**pipeline.components)
        extra |= {"image": image, "use_cross_timestep": pipeline.transformer.config.cross_attn_mod}
    pipeline.set_progress_bar_config(disable=True)
    pipeline._callback_tensor_inputs = ["latents", "audio_latents"]
    latents: list[np.ndarray] = []

    def keep(_pipe: Any, _step: int, _time: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        latents.extend(stream[0].numpy().copy() for stream in tensors.values())
        return {}

    arguments = {**extra, **request, "frame_rate": float(request["fps"])}
    seed, _ = arguments.pop("seed"), arguments.pop("fps")
    output = pipeline(
        **arguments,
        **dict.fromkeys(("audio_stg_scale", "audio_modality_scale", "audio_guidance_rescale")),
        generator=torch.Generator("cpu").manual_seed(seed),
        output_type="np",
        callback_on_step_end=keep,
        callback_on_step_end_tensor_inputs=["latents", "audio_latents"],
    )
    frames = (output.frames[0] * 255).astype(np.uint8)
    return Sounding(latents, frames, output.audio[0].numpy())


def run_atelier(
    programs: Programs,
    request: Mapping[str, Any],
    image: Image.Image | None = None,
    **spoiled: Any,
) -> Sounding:
    files = {} if image is None else {"image": png(image)}
    pipeline: Any = programs.pipeline
    prepared = pipeline.prepare({**pipeline.spec.defaults, **request}, files)
    _, *rows = programs.denoise(prepared, **spoiled)
    pixels, sound = programs.decode(pipeline.weights, rows[-1])
    streams_of_rows = [pipeline.grid.streams(row["latents"], latent_sizes_of(row)) for row in rows]
    latents = [np.asarray(stream) for streams in streams_of_rows for stream in streams]
    return Sounding(latents, np.asarray(pixels), np.asarray(sound))


@pytest.mark.parametrize(("checkpoint", "more"), REQUESTS.values(), ids=REQUESTS)
def test_text_to_video(
    pairs: Mapping[str, Pair], checkpoint: str, more: Mapping[str, Any], record_property: Any
) -> None:
    pair, request = pairs[checkpoint], {**BASE, **more}
    assert_alike(run_atelier(pair.atelier, request), run_diffusers(pair, request), record_property)


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_image_to_video(pairs: Mapping[str, Pair], checkpoint: str, record_property: Any) -> None:
    pair, request = pairs[checkpoint], {**BASE, **FROM_IMAGE[checkpoint]}
    result, expected = (
        run_atelier(pair.atelier, request, FIRST),
        run_diffusers(pair, request, FIRST),
    )
    assert_alike(result, expected, record_property)
    mirrored = FIRST.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    assert_far(run_atelier(pair.atelier, request, mirrored), expected)


@pytest.mark.parametrize(
    ("field", "value"),
    {
        "guidance_scale": 2.5,
        "audio_guidance_scale": 2.0,
        "stg_scale": 1.0,
        "modality_scale": 2.0,
        "guidance_rescale": 0.3,
    }.items(),
)
def test_every_scale_counts(pairs: Mapping[str, Pair], field: str, value: float) -> None:
    """Audio scales count too, because the video attends to the audio."""
    pair, (_, more) = pairs["2.3"], REQUESTS["2.3, all guidance"]
    request = {**BASE, **more}
    assert_far(run_atelier(pair.atelier, request | {field: value}), run_diffusers(pair, request))


SPOILED: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "prompts the wrong way round": lambda row: {"prompt_embeds": row["prompt_embeds"][::-1]},
    "no text of the audio": lambda row: {"audio_embeds": 0 * row["audio_embeds"]},
    "latents in another order": lambda row: {"latents": row["latents"][::-1]},
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_wrong_row_breaks_parity(
    pairs: Mapping[str, Pair], spoil: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    pair, (_, more) = pairs["2.3"], REQUESTS["2.3, all guidance"]
    request = {**BASE, **more}
    result = run_atelier(pair.atelier, request, spoil=lambda row: {**row, **spoil(row)})
    assert_far(result, run_diffusers(pair, request))


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"width": 100}, "width: must be a multiple of 32"),
        ({"num_frames": 8}, "num_frames: must be 1 more than a multiple of 4"),
        ({"num_frames": 1, "fps": 240}, "num_frames: is too short for sound"),
        ({"max_sequence_length": 50}, "max_sequence_length: must be a multiple of 12"),
    ],
)
def test_invalid_requests_are_rejected(
    pairs: Mapping[str, Pair], more: dict[str, Any], named: str
) -> None:
    pipeline = pairs["2.3"].atelier.pipeline
    with pytest.raises(RequestError, match=named):
        pipeline.prepare({**pipeline.spec.defaults, **BASE, **more}, {})


def test_unused_negative_prompt_is_a_warning(pairs: Mapping[str, Pair]) -> None:
    pipeline = pairs["2.3"].atelier.pipeline
    fields = {**pipeline.spec.defaults, **BASE, **UNGUIDED, "negative_prompt": "a star"}
    (warning,) = pipeline.prepare(fields, {}).warnings
    assert warning.field == "negative_prompt"


def test_a_checkpoint_without_perturbed_attention_has_no_scale_of_it(
    pairs: Mapping[str, Pair],
) -> None:
    assert "stg_scale" in pairs["2.3"].atelier.pipeline.spec.fields
    spec = pairs["2.0, odd"].atelier.pipeline.spec
    assert "stg_scale" not in spec.fields | spec.defaults.keys()
