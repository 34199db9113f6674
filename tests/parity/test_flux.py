"""Flux compared with diffusers' pipelines in the same process, on small checkpoints of odd shapes.

Bounds: latents of each step to a relative 1e-4, images to 60 dB and two grey levels. On these
checkpoints rounding alone (float32 against float64) stays above 80 dB, and a wrong term below 50.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from diffusers import FluxImg2ImgPipeline, FluxPipeline
from PIL import Image

from models import registry
from models.interface.pipeline import PyTree, denoise
from tests import coarse
from tests.parity.distances import png, psnr_db, relative
from tests.parity.lazy_dict import LazyDict
from tests.parity.programs import Programs
from tests.parity.step_latents import StepLatents
from tests.parity.tiny import make_flux

RELATIVE = 1e-4
PSNR_DB = 60.0
GREY_LEVELS = 2

PROMPT = "a red circle on a blue background"
PICTURE = Image.fromarray(
    np.random.default_rng(5).integers(0, 256, (37, 61, 3), dtype=np.uint8)
).resize((183, 111))


@dataclass(frozen=True)
class Checkpoint:
    """Overrides of `make_flux`'s small configs."""

    transformer: Mapping[str, Any] = field(default_factory=dict)
    vae: Mapping[str, Any] = field(default_factory=dict)
    clip: Mapping[str, Any] = field(default_factory=dict)
    t5: Mapping[str, Any] = field(default_factory=dict)
    scheduler: Mapping[str, Any] = field(default_factory=dict)

    def make(self, folder: Path) -> Path:
        return make_flux(folder, **{name: dict(part) for name, part in vars(self).items()})


CHECKPOINTS = {
    "dev": Checkpoint(),
    "schnell": Checkpoint(
        transformer={
            "guidance_embeds": False,
            "num_layers": 1,
            "num_single_layers": 4,
            "attention_head_dim": 16,
            "num_attention_heads": 5,
            "axes_dims_rope": (4, 4, 8),
        },
        scheduler={"shift": 1.0, "use_dynamic_shifting": False},
        t5={"feed_forward_proj": "relu", "num_heads": 3, "d_kv": 11},
    ),
    "quant conv, four levels": Checkpoint(
        transformer={"num_layers": 3, "num_single_layers": 0},
        vae={
            "block_out_channels": (6, 6, 12, 18),
            "layers_per_block": 2,
            "latent_channels": 6,
            "norm_num_groups": 3,
            "use_quant_conv": True,
            "use_post_quant_conv": True,
        },
        clip={"num_attention_heads": 5, "hidden_act": "gelu", "num_hidden_layers": 2},
        scheduler={"time_shift_type": "linear", "shift_terminal": 0.05},
    ),
    "no attention in the VAE, static shift": Checkpoint(
        transformer={"num_layers": 0, "num_single_layers": 2},
        vae={"mid_block_add_attention": False, "block_out_channels": (8, 16)},
        scheduler={"use_dynamic_shifting": False, "shift": 3.0},
    ),
}

REQUESTS: dict[str, dict[str, Any]] = {
    "defaults": {"guidance_scale": 3.5},
    "strong guidance, wide": {"guidance_scale": 7.25, "width": 64, "height": 32},
    "true cfg": {
        "guidance_scale": 2.0,
        "true_cfg_scale": 3.5,
        "negative_prompt": "a green square",
        "prompt_2": "the yellow triangle",
        "negative_prompt_2": "star below",
    },
    "own sigmas, short text": {
        "guidance_scale": 1.0,
        "sigmas": [1.0, 0.8, 0.35],
        "max_sequence_length": 13,
    },
}
FROM_IMAGE: dict[str, dict[str, Any]] = {
    "default strength": {"strength": 0.6, "guidance_scale": 7.0},
    "weak, true cfg": {
        "strength": 0.35,
        "guidance_scale": 3.5,
        "true_cfg_scale": 2.0,
        "negative_prompt": "a star",
        "num_inference_steps": 7,
    },
    "full strength": {"strength": 1.0, "guidance_scale": 3.5},
}
BASE = {
    "prompt": PROMPT,
    "width": 48,
    "height": 80,
    "num_inference_steps": 5,
    "max_sequence_length": 24,
    "seed": 1234,
}


AS_USERS = {("dev", "true cfg"), ("dev", "default strength")}
"""Cases whose programs are compiled with production options; all others compile coarsely."""


@pytest.fixture(scope="module", autouse=True)
def compiled_coarsely() -> None:
    """Override the folder's fixture: compile options depend on the request."""


class Pair:
    """One checkpoint, loaded by diffusers and by Atelier."""

    def __init__(self, folder: Path, checkpoint: Checkpoint) -> None:
        self.folder = checkpoint.make(folder)
        self.diffusers = FluxPipeline.from_pretrained(self.folder)
        with coarse.compiled():
            loaded = registry.load("tiny", str(self.folder), "float32", {})
        self.atelier, self.as_users = Programs(loaded, coarse.OPTIONS), Programs(loaded)

    def programs(self, checkpoint: str, request_name: str) -> Programs:
        return self.as_users if (checkpoint, request_name) in AS_USERS else self.atelier


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Pair]:
    root = tmp_path_factory.mktemp("flux")
    return LazyDict(lambda name: Pair(root / name, CHECKPOINTS[name]))


@dataclass(frozen=True)
class Result:
    latents: list[np.ndarray]
    """Latents after each step, packed."""
    image: np.ndarray


def run_diffusers(
    base: FluxPipeline, request: Mapping[str, Any], image: Image.Image | None = None
) -> Result:
    pipeline = base if image is None else FluxImg2ImgPipeline(**base.components)
    pipeline.set_progress_bar_config(disable=True)
    latents = StepLatents()

    arguments = {name: value for name, value in request.items() if name != "seed"}
    generator = torch.Generator("cpu").manual_seed(request["seed"])
    extra = {} if image is None else {"image": image}
    output = pipeline(**arguments, **extra, generator=generator, callback_on_step_end=latents.keep)
    return Result(latents, np.asarray(output.images[0]))


def run_atelier(
    programs: Programs,
    request: Mapping[str, Any],
    image: Image.Image | None = None,
    weights: PyTree | None = None,
) -> Result:
    images = {} if image is None else {"image": png(image)}
    return Result(*programs.drawn(programs.pipeline.prepare(request, images), weights))


def assert_same(output: Result, expected: Result, record: Any) -> None:
    steps = [relative(a, b) for a, b in zip(output.latents, expected.latents, strict=True)]
    levels = np.abs(output.image.astype(int) - expected.image)
    record("latents_relative", max(steps))
    record("psnr_db", psnr_db(output.image, expected.image))
    print(
        f"latents {max(steps):.1e}, {psnr_db(output.image, expected.image):.1f} dB, {levels.max()}"
    )
    assert max(steps) <= RELATIVE, steps
    assert psnr_db(output.image, expected.image) >= PSNR_DB
    assert levels.max() <= GREY_LEVELS
    assert expected.image.std() > 10, "a flat image proves nothing"


@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_text_to_image(
    pairs: Mapping[str, Pair], checkpoint: str, request_name: str, record_property: Any
) -> None:
    pair, request = pairs[checkpoint], BASE | REQUESTS[request_name]
    result = run_atelier(pair.programs(checkpoint, request_name), request)
    assert_same(result, run_diffusers(pair.diffusers, request), record_property)


@pytest.mark.parametrize("request_name", FROM_IMAGE)
@pytest.mark.parametrize("checkpoint", ["dev", "quant conv, four levels"])
def test_image_to_image(
    pairs: Mapping[str, Pair], checkpoint: str, request_name: str, record_property: Any
) -> None:
    pair, request = pairs[checkpoint], BASE | FROM_IMAGE[request_name]
    result = run_atelier(pair.programs(checkpoint, request_name), request, PICTURE)
    assert_same(result, run_diffusers(pair.diffusers, request, PICTURE), record_property)


def test_plain_loop_matches_the_pipeline(pairs: Mapping[str, Pair]) -> None:
    """The loop compiles its own programs and gives the same latents bit for bit."""
    programs = pairs["no attention in the VAE, static shift"].atelier
    prepared = programs.pipeline.prepare(BASE | REQUESTS["true cfg"], {})
    with coarse.compiled():
        rows = list(denoise(programs.pipeline, prepared))
    for row, expected in zip(rows, programs.denoise(prepared), strict=True):
        np.testing.assert_array_equal(row["latents"], expected["latents"])


def without(weights: Any, path: tuple[str, ...]) -> PyTree:
    """Copy the weights with one array of the transformer zeroed."""
    transformer = jax.tree.map(lambda leaf: leaf, weights.transformer)
    node: Any = transformer
    for name in path:
        node = node[name]
    node.set_value(jnp.zeros_like(node[...]))
    return weights._replace(transformer=transformer)


DROPPED = {
    "guidance embedding": ("conditions", "guidance_in", "second", "kernel"),
    "pooled text": ("conditions", "pooled_in", "second", "kernel"),
    "modulation bias": ("conditions", "image_modulation", "linear", "bias"),
    "key norm": ("single_blocks", "heads", "k_norm", "scale"),
    "last bias": ("latents_out", "bias"),
}


@pytest.mark.parametrize("path", DROPPED.values(), ids=DROPPED)
def test_dropped_term_breaks_parity(pairs: Mapping[str, Pair], path: tuple[str, ...]) -> None:
    pair, request = pairs["dev"], BASE | REQUESTS["defaults"]
    damaged = without(pair.atelier.pipeline.weights, path)
    assert_far(
        run_atelier(pair.atelier, request, weights=damaged), run_diffusers(pair.diffusers, request)
    )


def test_swapped_rope_axis_breaks_parity(pairs: Mapping[str, Pair], tmp_path: Path) -> None:
    folder = shutil.copytree(pairs["dev"].folder, tmp_path / "swapped")
    file = folder / "transformer/config.json"
    config = json.loads(file.read_text())
    first, second, third = config["axes_dims_rope"]
    config["axes_dims_rope"] = [first, third, second]
    file.write_text(json.dumps(config))
    request = BASE | REQUESTS["defaults"]
    with coarse.compiled():
        loaded = registry.load("tiny", str(folder), "float32", {})
    swapped = Programs(loaded, coarse.OPTIONS)
    assert_far(run_atelier(swapped, request), run_diffusers(pairs["dev"].diffusers, request))


def assert_far(output: Result, expected: Result) -> None:
    """Assert that both bounds are exceeded tenfold, beyond any plausible tolerance."""
    assert max(map(relative, output.latents, expected.latents)) > 10 * RELATIVE
    assert psnr_db(output.image, expected.image) < PSNR_DB - 10
