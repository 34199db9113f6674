"""Z-Image compared with diffusers' pipelines in the same process, on small odd checkpoints.

Bounds as in test_flux.py: latents of each step to a relative 1e-4, images to 60 dB and two grey
levels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from diffusers import ZImageImg2ImgPipeline, ZImageInpaintPipeline, ZImagePipeline
from PIL import Image, ImageOps

from models.vae.patches import pack_by_pixel
from tests.parity.distances import relative
from tests.parity.pairs import (
    MASK,
    Pair,
    drawn_by,
    loud_behind_captions,
    pairs_of,
    run_atelier,
    zeroed,
)
from tests.parity.test_flux import PICTURE, RELATIVE, Result, assert_far, assert_same
from tests.parity.tiny_zimage import make_zimage

ODD: dict[str, Any] = {
    "transformer": {
        "n_layers": 2,
        "n_refiner_layers": 0,
        "n_heads": 5,
        "axes_dims": (4, 4, 6),
        "norm_eps": 1e-3,
        "qk_norm": False,
        "rope_theta": 900.0,
        "t_scale": 700.0,
    },
    "vae": {"block_out_channels": (8, 16), "latent_channels": 6, "mid_block_add_attention": False},
    "text_encoder": {"num_hidden_layers": 2, "attention_bias": True, "head_dim": 6},
    "shift": 3.0,
}
CHECKPOINTS: dict[str, dict[str, Any]] = {"base": {}, "odd": ODD}
PROMPT = "a red circle on a blue background"
LONG = f"{PROMPT} and a green square below the yellow triangle above the star " * 2
REQUESTS: dict[str, dict[str, Any]] = {
    "prompts of two lengths": {"prompt": LONG, "negative_prompt": "star", "guidance_scale": 4.0},
    "no guidance": {"guidance_scale": 0.0, "negative_prompt": "unread", "width": 64, "height": 32},
    "bounded, truncated": {
        "guidance_scale": 5.0,
        "negative_prompt": LONG,
        "cfg_normalization": 0.9,
        "cfg_truncation": 0.4,
        "sigmas": [1.0, 0.9, 0.8, 0.35],
        "num_inference_steps": 4,
    },
    "cut in the middle": {"prompt": LONG, "guidance_scale": 2.0, "max_sequence_length": 45},
}
FROM_IMAGE: dict[str, dict[str, Any]] = {
    "default strength": {"strength": 0.6, "guidance_scale": 3.0, "prompt": LONG},
    "full strength": {"strength": 1.0, "guidance_scale": 0.0},
}
BASE = {
    "prompt": PROMPT,
    "width": 48,
    "height": 80,
    "num_inference_steps": 5,
    "max_sequence_length": 200,
    "seed": 1234,
}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Pair]:
    root = tmp_path_factory.mktemp("zimage")
    return pairs_of(root, CHECKPOINTS, make_zimage, ZImagePipeline.from_pretrained)


def tokens_of(tensors: Mapping[str, Any]) -> np.ndarray:
    """Return the latents of diffusers' step, packed."""
    return np.asarray(pack_by_pixel(jnp.asarray(tensors["latents"][0].numpy().transpose(1, 2, 0))))


def run_diffusers(
    base: ZImagePipeline,
    request: Mapping[str, Any],
    image: Image.Image | None = None,
    mask: Image.Image | None = None,
) -> Result:
    kind = ZImagePipeline if image is None else ZImageImg2ImgPipeline
    pipeline = (kind if mask is None else ZImageInpaintPipeline)(**base.components)
    if image is not None:  # the reference requires images of the requested size
        size = (request["width"], request["height"])
        image = image.resize(size, Image.Resampling.LANCZOS)
    return drawn_by(pipeline, request, tokens_of, image=image, mask_image=mask)


@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_text_to_image(
    pairs: Mapping[str, Pair], checkpoint: str, request_name: str, record_property: Any
) -> None:
    pair, request = pairs[checkpoint], BASE | REQUESTS[request_name]
    assert_same(
        run_atelier(pair.atelier, request), run_diffusers(pair.diffusers, request), record_property
    )


@pytest.mark.parametrize("request_name", FROM_IMAGE)
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_image_to_image(
    pairs: Mapping[str, Pair], checkpoint: str, request_name: str, record_property: Any
) -> None:
    pair, request = pairs[checkpoint], BASE | FROM_IMAGE[request_name]
    result = run_atelier(pair.atelier, request, PICTURE)
    assert_same(result, run_diffusers(pair.diffusers, request, PICTURE), record_property)


@pytest.mark.parametrize("strength", [1.0, 0.7])
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_inpainting(
    pairs: Mapping[str, Pair], checkpoint: str, strength: float, record_property: Any
) -> None:
    pair, request = pairs[checkpoint], BASE | {"guidance_scale": 2.0, "strength": strength}
    result, expected = (by(pair, request, MASK) for by in (atelier_part, diffusers_part))
    assert_same(result, expected, record_property)
    assert_far(atelier_part(pair, request, ImageOps.invert(MASK)), expected)


def atelier_part(pair: Pair, request: Mapping[str, Any], mask: Image.Image) -> Result:
    return run_atelier(pair.atelier, request, PICTURE, mask)


def diffusers_part(pair: Pair, request: Mapping[str, Any], mask: Image.Image) -> Result:
    return run_diffusers(pair.diffusers, request, PICTURE, mask)


DROPPED = {
    "fill of captions": ("transformer", "text_filling"),
    "fill of images": ("transformer", "image_filling"),
    "norm of captions": ("transformer", "text_norm", "scale"),
    "refiner of captions": ("transformer", "text_blocks", "feed_forward_out", "scale"),
    "modulation bias": ("transformer", "blocks", "modulation", "bias"),
    "last modulation": ("transformer", "out_modulation", "bias"),
    "key norm of the encoder": ("text_encoder", "blocks", "attention", "k_norm", "scale"),
}


@pytest.mark.parametrize("path", DROPPED.values(), ids=DROPPED)
def test_dropped_term_breaks_parity(pairs: Mapping[str, Pair], path: tuple[str, ...]) -> None:
    pair, request = pairs["base"], BASE | REQUESTS["prompts of two lengths"]
    damaged = zeroed(pair.atelier.pipeline.weights, *path)
    assert_far(
        run_atelier(pair.atelier, request, weights=damaged), run_diffusers(pair.diffusers, request)
    )


SPOILED: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "a caption that counts its padding": lambda row: {"lengths": row["lengths"] + 32},
    "a caption that loses a word": lambda row: {"lengths": row["lengths"] - 1},
    "prompts the wrong way round": lambda row: {
        name: row[name][::-1] for name in ("captions", "lengths")
    },
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_wrong_row_breaks_parity(
    pairs: Mapping[str, Pair], spoil: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    pair, request = pairs["base"], BASE | REQUESTS["prompts of two lengths"]
    result = run_atelier(pair.atelier, request, spoil=lambda row: {**row, **spoil(row)})
    assert_far(result, run_diffusers(pair.diffusers, request))


def test_caption_padding_has_no_effect(pairs: Mapping[str, Pair]) -> None:
    """Neither the padding's content nor its length affects the latents."""
    pair, request = pairs["base"], BASE | REQUESTS["prompts of two lengths"]
    plain = run_atelier(pair.atelier, request)

    loud = run_atelier(pair.atelier, request, spoil=loud_behind_captions)
    np.testing.assert_array_equal(plain.latents[-1], loud.latents[-1])
    longer = run_atelier(pair.atelier, request | {"max_sequence_length": 256})
    assert relative(longer.latents[-1], plain.latents[-1]) < RELATIVE
