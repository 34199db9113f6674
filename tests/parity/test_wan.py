"""Wan compared with diffusers' pipelines in the same process, on small checkpoints of odd shapes.

Bounds: latents of each step to a relative 1e-4. Frames (truncated to bytes as by `export_to_video`)
to 60 dB and two grey levels. On these checkpoints rounding alone stays above 70 dB.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from diffusers import (
    DiffusionPipeline,
    DPMSolverMultistepScheduler,
    FlowMatchEulerDiscreteScheduler,
    UniPCMultistepScheduler,
    WanImageToVideoPipeline,
)
from flax import nnx
from PIL import Image

from models import registry
from models.interface.pipeline import PreparedRow, generate
from models.wan.pipeline import WanPipeline
from tests import coarse
from tests.parity.distances import png, psnr_db, relative
from tests.parity.programs import Programs
from tests.parity.step_latents import StepLatents
from tests.parity.tiny import Config
from tests.parity.tiny_wan import VAE_2_2, make_wan

SCHEDULERS = {
    "unipc": UniPCMultistepScheduler,
    "dpmpp_2m": DPMSolverMultistepScheduler,
    "flow_match_euler": FlowMatchEulerDiscreteScheduler,
}

RELATIVE = 1e-4
PSNR_DB = 60.0
GREY_LEVELS = 2

FIRST, LAST = (
    Image.fromarray(
        np.random.default_rng(seed).integers(0, 256, (37, 61, 3), dtype=np.uint8)
    ).resize(size)
    for seed, size in ((5, (183, 111)), (6, (90, 130)))
)

CHECKPOINTS: dict[str, Config] = {
    "t2v 2.1": {},
    "t2v 2.2": {
        "transformer": {"num_layers": 2},
        "transformer_2": {"num_attention_heads": 5, "attention_head_dim": 14, "ffn_dim": 33},
        "boundary_ratio": 0.875,
        "scheduler": {"flow_shift": 5.0},
    },
    "high noise alone": {"transformer": {"num_layers": 1}, "boundary_ratio": 0.0},
    "low noise alone": {"transformer_2": {"num_layers": 2}, "boundary_ratio": 1.0},
    "i2v 2.1": {"from_image": True, "vision": {}},
    "i2v 2.1, image among the text": {
        "from_image": True,
        "vision": {"hidden_act": "quick_gelu", "num_attention_heads": 13},
        "transformer": {"added_kv_proj_dim": None, "cross_attn_norm": False},
    },
    "first and last": {
        "from_image": True,
        "vision": {"num_hidden_layers": 2},
        "transformer": {"pos_embed_seq_len": 20},
    },
    "i2v 2.2": {
        "from_image": True,
        "transformer": {"num_layers": 1},
        "transformer_2": {"num_layers": 2},
        "boundary_ratio": 0.9,
        "vae": {"num_res_blocks": 2, "dim_mult": [1, 2, 3, 3]},
    },
    "ti2v": {"vae": VAE_2_2, "expand_timesteps": True, "transformer": {"num_layers": 2}},
    "flow match euler, patches of 1 x 2": {
        "transformer": {"patch_size": (1, 1, 2), "num_layers": 2, "eps": 1e-3},
        "scheduler": {"kind": "FlowMatchEulerDiscreteScheduler", "shift": 3.0},
        "vae": {
            "dim_mult": [1, 2, 3],
            "temperal_downsample": [True, True],
            "scale_factor_spatial": 4,
        },
        "t5": {"num_heads": 3, "d_kv": 11, "d_model": 24},
    },
}

PROMPTED = {"guidance_scale": 4.5, "negative_prompt": "a green square"}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "t2v 2.1, guided": ("t2v 2.1", PROMPTED),
    "t2v 2.1, guidance off": ("t2v 2.1", {"guidance_scale": 1.0, "negative_prompt": "a star"}),
    "t2v 2.1, long text and a single frame": (
        "t2v 2.1",
        {
            "prompt": "  a  red circle &amp;amp; the blue square ",
            "num_frames": 1,
            "max_sequence_length": 11,
            "num_inference_steps": 6,
        },
    ),
    "t2v 2.1, shifted by request": ("t2v 2.1", {"scheduler": {"name": "unipc", "flow_shift": 7.0}}),
    "t2v 2.1, euler by request": (
        "t2v 2.1",
        {"scheduler": {"name": "flow_match_euler", "shift": 2.5}, "guidance_scale": 1.0},
    ),
    "t2v 2.1, dpm++ by request": (
        "t2v 2.1",
        {"scheduler": {"name": "dpmpp_2m", "solver_order": 3}, "num_inference_steps": 5},
    ),
    "t2v 2.2, one guidance": ("t2v 2.2", PROMPTED),
    "t2v 2.2, two guidances": ("t2v 2.2", {**PROMPTED, "guidance_scale_2": 2.0}),
    "t2v 2.2, second guidance alone has no effect": (
        "t2v 2.2",
        {"guidance_scale": 1.0, "guidance_scale_2": 3.0},
    ),
    "high noise alone": ("high noise alone", PROMPTED),
    "low noise alone": ("low noise alone", {**PROMPTED, "guidance_scale_2": 1.5}),
    "i2v 2.1": ("i2v 2.1", {**PROMPTED, "image": FIRST, "max_sequence_length": 512}),
    "i2v 2.1, text so short that the image is read as text": (
        "i2v 2.1",
        {**PROMPTED, "image": FIRST, "num_inference_steps": 2},
    ),
    "i2v 2.1, text so short that half the image is read as text": (
        "i2v 2.1",
        {"image": FIRST, "max_sequence_length": 507, "num_frames": 1, "num_inference_steps": 2},
    ),
    "i2v 2.1, image among the text": (
        "i2v 2.1, image among the text",
        {"image": FIRST, "guidance_scale": 1.0, "num_frames": 5},
    ),
    "first and last": (
        "first and last",
        {**PROMPTED, "image": FIRST, "last_image": LAST, "max_sequence_length": 512},
    ),
    "i2v 2.2": ("i2v 2.2", {**PROMPTED, "image": FIRST, "guidance_scale_2": 3.5}),
    "i2v 2.2, first and last": (
        "i2v 2.2",
        {"image": FIRST, "last_image": LAST, "guidance_scale": 1.0},
    ),
    "ti2v, text": ("ti2v", {**PROMPTED, "width": 64, "height": 96}),
    "ti2v, image": ("ti2v", {**PROMPTED, "width": 64, "height": 96, "image": FIRST}),
    "flow match euler": ("flow match euler, patches of 1 x 2", PROMPTED),
}
BASE: dict[str, Any] = {
    "prompt": "a red circle on a blue background",
    "width": 80,
    "height": 48,
    "num_frames": 9,
    "num_inference_steps": 4,
    "guidance_scale": 5.0,
    "max_sequence_length": 24,
    "seed": 1234,
}


class Result(NamedTuple):
    latents: list[np.ndarray]
    """Latents after each step, [f, h, w, c]."""
    frames: np.ndarray
    """uint8 [frames, height, width, 3]."""


AS_USERS = {"t2v 2.1, guided", "i2v 2.1, image among the text"}
"""Cases whose programs are compiled with production options; all others compile coarsely."""


@pytest.fixture(scope="module", autouse=True)
def compiled_coarsely() -> None:
    """Override the folder's fixture: compile options depend on the request."""


class AtelierRunner:
    """One checkpoint, loaded by Atelier."""

    def __init__(self, folder: Path) -> None:
        with coarse.compiled():
            loaded = registry.load("tiny", str(folder), "float32", {})
        assert isinstance(loaded, WanPipeline)
        self.pipeline = loaded
        self.programs, self.as_users = Programs(loaded, coarse.OPTIONS), Programs(loaded)

    def prepare(self, request: Mapping[str, Any]) -> PreparedRow:
        fields, images = split(request)
        return self.pipeline.prepare(fields, {k: png(v) for k, v in images.items()})

    def __call__(
        self, request: Mapping[str, Any], spoil: Callable[[Any], Any] = lambda row: row
    ) -> Result:
        """Run a request; `spoil` corrupts the row after encoding."""
        return Result(*self.programs.drawn(self.prepare(request), spoil=spoil))


class Pair:
    """One checkpoint, loaded by Atelier and by diffusers."""

    def __init__(self, folder: Path, config: Config) -> None:
        self.folder = make_wan(folder, **config)
        self.atelier = AtelierRunner(self.folder)
        self.base = DiffusionPipeline.from_pretrained(self.folder)

    def run_diffusers(self, request: Mapping[str, Any]) -> Result:
        fields, images = split(request)
        pipeline = self._pipeline(fields.pop("scheduler", None), from_image=bool(images))
        generator = torch.Generator("cpu").manual_seed(fields.pop("seed"))
        latents = StepLatents()

        output = pipeline(
            **fields, **images, generator=generator, callback_on_step_end=latents.keep
        )
        return Result(latents, (output.frames[0] * 255).astype(np.uint8))

    def _pipeline(self, chosen: Mapping[str, Any] | None, *, from_image: bool) -> Any:
        """The checkpoint's own class, or the one for images, with the request's scheduler."""
        parts = dict(self.base.components)
        if chosen is not None:
            options = {name: value for name, value in chosen.items() if name != "name"}
            config_of_scheduler = self.base.scheduler.config
            parts["scheduler"] = SCHEDULERS[chosen["name"]].from_config(
                config_of_scheduler, **options
            )
        kind = WanImageToVideoPipeline if from_image else type(self.base)
        config = self.base.config
        settings = {name: config[name] for name in ("boundary_ratio", "expand_timesteps")}
        pipeline = kind(**parts, **settings)
        pipeline.set_progress_bar_config(disable=True)
        return pipeline


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("wan")
    folders = {name: root / str(number) for number, name in enumerate(CHECKPOINTS)}
    return cache(lambda name: Pair(folders[name], CHECKPOINTS[name]))


def split(request: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Image.Image]]:
    """Split a request into fields, and images by field."""
    images = {name: value for name, value in request.items() if isinstance(value, Image.Image)}
    return {name: value for name, value in request.items() if name not in images}, images


# diffusers' DPM++ passes a tensor to NumPy in a deprecated way.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("case", REQUESTS)
def test_video_matches_diffusers(pairs: Any, case: str, record_property: Any) -> None:
    name, more = REQUESTS[case]
    pair, request = pairs(name), BASE | more
    programs = pair.atelier.as_users if case in AS_USERS else pair.atelier.programs
    result = Result(*programs.drawn(pair.atelier.prepare(request)))
    expected = pair.run_diffusers(request)
    steps = [relative(a, b) for a, b in zip(result.latents, expected.latents, strict=True)]
    levels = np.abs(result.frames.astype(int) - expected.frames)
    record_property("latents_relative", max(steps))
    record_property("psnr_db", psnr_db(result.frames, expected.frames))
    print(
        f"latents {max(steps):.1e}, {psnr_db(result.frames, expected.frames):.1f} dB,"
        f" {levels.max()}"
    )
    assert result.frames.shape == expected.frames.shape
    assert max(steps) <= RELATIVE, steps
    assert psnr_db(result.frames, expected.frames) >= PSNR_DB
    assert levels.max() <= GREY_LEVELS
    assert expected.frames.std() > 10, "a flat video proves nothing"


def test_host_experts_give_a_bitwise_equal_video(pairs: Any) -> None:
    pair, request = pairs("t2v 2.2"), BASE | REQUESTS["t2v 2.2, one guidance"][1]
    folder = str(pair.folder)
    hosted = registry.load("tiny", folder, "float32", {}, swap_experts=True)
    kinds = {
        name: {type(leaf) for leaf in jax.tree.leaves(weights)}
        for name, weights in hosted.weights._asdict().items()
    }
    assert kinds["transformer"] == kinds["transformer_2"] == {np.ndarray}
    assert all(issubclass(kind, jax.Array) for kind in kinds["t5"] | kinds["vae"])
    programs = {step.program for step in hosted.prepare(request, {}).steps}
    assert {program.network for program in programs} == {"transformer", "transformer_2"}
    with coarse.compiled():
        expected = generate(pair.atelier.pipeline, request, {})
        np.testing.assert_array_equal(generate(hosted, request, {}), expected)


def test_previews_are_small_videos_of_denoised_latents(pairs: Any) -> None:
    loaded, request = pairs("ti2v").atelier, BASE | REQUESTS["ti2v, image"][1]
    pipeline = loaded.pipeline
    row = loaded.programs.encode(pipeline.weights, dict(loaded.prepare(request).inputs))
    empty = jax.jit(pipeline.preview)(pipeline.weights, row)
    assert (empty.shape, empty.dtype) == ((3, 6, 4, 3), jnp.uint8)
    row["denoised"] = jnp.broadcast_to(row["first_frame"], row["denoised"].shape)
    complete = jax.jit(pipeline.preview)(pipeline.weights, row)
    np.testing.assert_array_equal(empty[0], complete[0], "the first frame is given from the start")
    np.testing.assert_array_equal(complete[0], complete[2])
    assert (np.asarray(empty[1]) != complete[1]).any()


def test_swapped_experts_break_parity(pairs: Any, tmp_path: Path) -> None:
    pair, request = pairs("t2v 2.2"), BASE | PROMPTED
    folder = shutil.copytree(pair.folder, tmp_path / "turned")
    for old, new in (
        ("transformer", "t"),
        ("transformer_2", "transformer"),
        ("t", "transformer_2"),
    ):
        (folder / old).rename(folder / new)
    assert_far(AtelierRunner(folder)(request), pair.run_diffusers(request))


def test_padding_features_break_parity(pairs: Any) -> None:
    pair, request = pairs("t2v 2.1"), BASE | PROMPTED
    pipeline, inputs = pair.atelier.pipeline, pair.atelier.prepare(request).inputs

    def unmasked(row: Any) -> Any:
        t5 = nnx.merge(pipeline.graphs.t5, pipeline.weights.t5)
        ids, mask = (jnp.asarray(inputs[name]) for name in ("text_ids", "text_mask"))
        return row | {"prompt_embeds": t5(ids, mask)}

    assert_far(pair.atelier(request, unmasked), pair.run_diffusers(request))


@pytest.mark.parametrize("case", ["i2v 2.1", "first and last"])
def test_inverted_mask_breaks_parity(pairs: Any, case: str) -> None:
    name, more = REQUESTS[case]
    pair, request = pairs(name), BASE | more

    def turned(row: Any) -> Any:
        mask, latents = jnp.split(row["condition"], [4], axis=-1)
        return row | {"condition": jnp.concatenate([1 - mask, latents], axis=-1)}

    assert_far(pair.atelier(request, turned), pair.run_diffusers(request))


def test_swapped_images_break_parity(pairs: Any) -> None:
    pair = pairs("first and last")
    request = BASE | REQUESTS["first and last"][1]
    swapped = request | {"image": LAST, "last_image": FIRST}
    assert_far(pair.atelier(swapped), pair.run_diffusers(request))


def test_noisy_first_frame_breaks_parity(pairs: Any) -> None:
    pair, request = pairs("ti2v"), BASE | REQUESTS["ti2v, image"][1]
    spoiled = pair.atelier(request, lambda row: row | {"first_frame": row["latents"][:1]})
    assert_far(spoiled, pair.run_diffusers(request))


def assert_far(output: Result, expected: Result) -> None:
    """Assert that both bounds are exceeded tenfold, beyond any plausible tolerance."""
    worst = max(map(relative, output.latents, expected.latents))
    print(f"latents {worst:.1e}, {psnr_db(output.frames, expected.frames):.1f} dB")
    assert worst > 10 * RELATIVE
    assert psnr_db(output.frames, expected.frames) < PSNR_DB - 10
