"""Flux with Redux compared with diffusers' FluxPriorReduxPipeline followed by FluxPipeline.

Bounds as in test_flux.py; diffusers runs in double precision, as in test_flux_tools.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from diffusers import FluxPipeline, FluxPriorReduxPipeline
from PIL import Image

from models import registry
from models.flux.redux import READ
from models.interface.pipeline import PyTree
from models.loading.sources import ImagePromptSource
from tests import coarse
from tests.parity.distances import png, psnr_db, relative
from tests.parity.lazy_dict import LazyDict
from tests.parity.programs import Programs
from tests.parity.step_latents import StepLatents
from tests.parity.test_flux import BASE, PICTURE, PSNR_DB, RELATIVE, Result, assert_same
from tests.parity.test_flux_tools import WIDE, noise
from tests.parity.tiny import make_flux
from tests.parity.tiny_redux import make_redux

TOKENS = 512
"""Text tokens of FluxPriorReduxPipeline, which supports no other number."""


@dataclass(frozen=True)
class Case:
    """Checkpoint of Flux and of Redux."""

    flux: Mapping[str, Any] = field(default_factory=dict)
    siglip: Mapping[str, Any] = field(default_factory=dict)
    joint: int = 40


CASES = {
    "dev": Case(flux={"transformer": {"num_layers": 1, "num_single_layers": 2}}),
    "odd": Case(
        flux={
            "transformer": {
                "num_layers": 2,
                "num_single_layers": 0,
                "guidance_embeds": False,
                "attention_head_dim": 16,
                "num_attention_heads": 5,
                "axes_dims_rope": (4, 4, 8),
            },
            "scheduler": {"use_dynamic_shifting": False, "shift": 2.0},
            "t5": {"d_model": 28, "feed_forward_proj": "relu", "num_heads": 3, "d_kv": 11},
        },
        siglip={
            "hidden_size": 30,
            "num_hidden_layers": 1,
            "num_attention_heads": 5,
            "image_size": 24,
            "patch_size": 8,
            "layer_norm_eps": 1e-2,
            "vision_use_head": False,
        },
        joint=28,
    ),
}


@dataclass(frozen=True)
class Request:
    """Images with their scales, and further fields."""

    images: tuple[tuple[Image.Image, float], ...]
    fields: Mapping[str, Any] = field(default_factory=dict)


REQUESTS = {
    "one image": Request(((PICTURE, 1.0),), {"guidance_scale": 2.5}),
    "two images, scaled": Request(
        ((PICTURE, 0.9), (WIDE, 0.8)),
        {"guidance_scale": 4.0, "width": 64, "height": 32, "prompt_2": "the yellow triangle"},
    ),
    "true cfg": Request(
        ((PICTURE, 0.8),),
        {
            "guidance_scale": 3.5,
            "true_cfg_scale": 2.5,
            "negative_prompt": "a green square",
            "num_inference_steps": 3,
        },
    ),
    "no text": Request(((WIDE, 0.8),), {"prompt": "", "guidance_scale": 3.5}),
}


class Pair:
    """Both checkpoints, loaded by diffusers and by Atelier."""

    def __init__(self, folder: Path, case: Case) -> None:
        flux = make_flux(folder / "flux", **{name: dict(of) for name, of in case.flux.items()})
        redux = make_redux(folder / "redux", siglip=dict(case.siglip), joint=case.joint)
        self.flux = FluxPipeline.from_pretrained(flux).to(torch.float64)
        parts = {
            name: self.flux.components[name]
            for name in ("text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2")
        }
        self.redux = FluxPriorReduxPipeline.from_pretrained(redux, **parts).to(torch.float64)
        with coarse.compiled():
            loaded = registry.load(
                *("tiny", str(flux), "float32", {}),
                image_prompts={"redux": ImagePromptSource(str(redux))},
            )
        self.atelier = Programs(loaded, coarse.OPTIONS)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Pair]:
    root = tmp_path_factory.mktemp("redux")
    return LazyDict(lambda name: Pair(root / name, CASES[name]))


def embeds(pair: Pair, request: Request) -> dict[str, torch.Tensor]:
    """diffusers' embeddings. Without text they are zeros, as without encoders, at this width."""
    images, scales = (list(part) for part in zip(*request.images, strict=True))
    fields = {**BASE, **request.fields}
    text = {"prompt": [fields["prompt"]] * len(images)}
    if "prompt_2" in fields:
        text["prompt_2"] = [fields["prompt_2"]] * len(images)
    output = pair.redux(
        images, **text, prompt_embeds_scale=scales, pooled_prompt_embeds_scale=scales
    )
    prompt, pooled = output.prompt_embeds, output.pooled_prompt_embeds
    if not fields["prompt"]:
        prompt[:, :TOKENS], pooled[:] = 0, 0
    return {"prompt_embeds": prompt, "pooled_prompt_embeds": pooled}


def run_diffusers(pair: Pair, request: Request) -> Result:
    pair.flux.set_progress_bar_config(disable=True)
    latents = StepLatents()

    fields = {**BASE, **request.fields, **embeds(pair, request)}
    generator = torch.Generator("cpu").manual_seed(fields.pop("seed"))
    for name in ("prompt", "prompt_2"):
        fields.pop(name, None)
    fields["max_sequence_length"] = TOKENS
    with patch("torch.randn", noise):
        output = pair.flux(**fields, generator=generator, callback_on_step_end=latents.keep)
    return Result(latents, np.asarray(output.images[0]))


def run_atelier(
    pair: Pair, request: Request, spoil: Callable[[PyTree], PyTree] = lambda row: row
) -> Result:
    entries = [{"name": "redux", "scale": scale} for _, scale in request.images]
    files = {f"image_prompts.{i}.image": png(image) for i, (image, _) in enumerate(request.images)}
    request_fields = {
        **BASE,
        **request.fields,
        "max_sequence_length": TOKENS,
        "image_prompts": entries,
    }
    return Result(
        *pair.atelier.drawn(pair.atelier.pipeline.prepare(request_fields, files), spoil=spoil)
    )


@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize("case", CASES)
def test_image_prompts_match_diffusers(
    pairs: Mapping[str, Pair], case: str, request_name: str, record_property: Any
) -> None:
    pair, request = pairs[case], REQUESTS[request_name]
    assert_same(run_atelier(pair, request), run_diffusers(pair, request), record_property)


SCALE = sum(scale for _, scale in REQUESTS["two images, scaled"].images)


def without_images(row: PyTree) -> PyTree:
    return {**row, "prompt_embeds": row["prompt_embeds"].at[:, TOKENS:].set(0)}


def unscaled_images(row: PyTree) -> PyTree:
    """Undo the scaling of the images' embeddings."""
    text, images = jnp.split(row["prompt_embeds"], [TOKENS], axis=1)
    return {**row, "prompt_embeds": jnp.concatenate([text, images / SCALE], axis=1)}


def unscaled_text(row: PyTree) -> PyTree:
    """Undo the scaling of the text's embeddings."""
    text, images = jnp.split(row["prompt_embeds"], [TOKENS], axis=1)
    return {**row, "prompt_embeds": jnp.concatenate([text / SCALE, images], axis=1)}


def unscaled_pooled(row: PyTree) -> PyTree:
    return {**row, "pooled_embeds": row["pooled_embeds"] / SCALE}


def read_without_guard(row: PyTree) -> PyTree:
    """Remove the token counts, so the negative prompt attends to the zeros after it."""
    return {name: leaf for name, leaf in row.items() if name != READ}


SCALED, GUIDED = "two images, scaled", "true cfg"
WRONG = {
    without_images: SCALED,
    unscaled_images: SCALED,
    unscaled_text: SCALED,
    unscaled_pooled: SCALED,
    read_without_guard: GUIDED,
}


@pytest.mark.parametrize("spoil", WRONG)
def test_wrong_interpretation_of_the_images_breaks_parity(
    pairs: Mapping[str, Pair], spoil: Callable[[PyTree], PyTree]
) -> None:
    pair, request = pairs["dev"], REQUESTS[WRONG[spoil]]
    spoiled, expected = run_atelier(pair, request, spoil), run_diffusers(pair, request)
    gap = max(map(relative, spoiled.latents, expected.latents))
    print(f"{gap:.1e}, {psnr_db(spoiled.image, expected.image):.1f} dB")
    assert gap > 10 * RELATIVE
    assert psnr_db(spoiled.image, expected.image) < PSNR_DB - 10
