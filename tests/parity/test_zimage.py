"""Z-Image against diffusers' own pipelines, in the same run, on small checkpoints of odd shapes.

Bounds as in test_flux.py: latents of each step to a relative 1e-4, images to 60 dB and two grey
levels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from diffusers import ZImageImg2ImgPipeline, ZImageInpaintPipeline, ZImagePipeline
from PIL import Image, ImageOps

from models import registry
from models.interface.pipeline import PyTree
from models.zimage.latents import pack
from tests import coarse
from tests.parity.programs import Programs
from tests.parity.test_flux import (
    PICTURE,
    RELATIVE,
    Result,
    assert_far,
    assert_same,
    png,
    relative,
)
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
MASK = Image.fromarray(
    np.random.default_rng(6).integers(0, 2, (5, 3), dtype=np.uint8) * 255, "L"
).resize((150, 190), Image.Resampling.NEAREST)
BASE = {
    "prompt": PROMPT,
    "width": 48,
    "height": 80,
    "num_inference_steps": 5,
    "max_sequence_length": 200,
    "seed": 1234,
}


class Pair:
    """One checkpoint, loaded by diffusers and by us."""

    def __init__(self, folder: Path, made: Mapping[str, Any]) -> None:
        self.folder = make_zimage(folder, **made)
        self.theirs = ZImagePipeline.from_pretrained(self.folder)
        with coarse.compiled():
            loaded = registry.load("tiny", str(self.folder), "float32", {})
        self.ours = Programs(loaded, coarse.OPTIONS)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Pair]:
    root = tmp_path_factory.mktemp("zimage")
    return {name: Pair(root / str(i), made) for i, (name, made) in enumerate(CHECKPOINTS.items())}


def theirs(
    base: ZImagePipeline,
    request: Mapping[str, Any],
    image: Image.Image | None = None,
    mask: Image.Image | None = None,
) -> Result:
    kind = ZImagePipeline if image is None else ZImageImg2ImgPipeline
    pipeline = (kind if mask is None else ZImageInpaintPipeline)(**base.components)
    pipeline.set_progress_bar_config(disable=True)
    latents: list[np.ndarray] = []

    def keep(_pipe: Any, _step: int, _time: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        latents.append(np.asarray(pack(tensors["latents"][0].numpy().transpose(1, 2, 0))))
        return {}

    given = {name: value for name, value in request.items() if name != "seed"}
    generator = torch.Generator("cpu").manual_seed(request["seed"])
    if image is not None:  # the reference takes images of the size asked for alone
        size = (request["width"], request["height"])
        given["image"] = image.resize(size, Image.Resampling.LANCZOS)
    if mask is not None:
        given["mask_image"] = mask
    made = pipeline(**given, generator=generator, callback_on_step_end=keep)
    return Result(latents, np.asarray(made.images[0]))


def ours(
    programs: Programs,
    request: Mapping[str, Any],
    image: Image.Image | None = None,
    mask: Image.Image | None = None,
    **spoiled: Any,
) -> Result:
    given = {"image": image, "mask_image": mask}
    images = {name: png(one) for name, one in given.items() if one is not None}
    return Result(*programs.drawn(programs.pipeline.prepare(request, images), **spoiled))


@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_text_to_image(
    pairs: Mapping[str, Pair], checkpoint: str, request_name: str, record_property: Any
) -> None:
    pair, request = pairs[checkpoint], BASE | REQUESTS[request_name]
    assert_same(ours(pair.ours, request), theirs(pair.theirs, request), record_property)


@pytest.mark.parametrize("request_name", FROM_IMAGE)
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_image_to_image(
    pairs: Mapping[str, Pair], checkpoint: str, request_name: str, record_property: Any
) -> None:
    pair, request = pairs[checkpoint], BASE | FROM_IMAGE[request_name]
    made = ours(pair.ours, request, PICTURE)
    assert_same(made, theirs(pair.theirs, request, PICTURE), record_property)


@pytest.mark.parametrize("strength", [1.0, 0.7])
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_inpainting(
    pairs: Mapping[str, Pair], checkpoint: str, strength: float, record_property: Any
) -> None:
    pair, request = pairs[checkpoint], BASE | {"guidance_scale": 2.0, "strength": strength}
    made, expected = (by(pair, request, MASK) for by in (our_part, their_part))
    assert_same(made, expected, record_property)
    assert_far(our_part(pair, request, ImageOps.invert(MASK)), expected)


def our_part(pair: Pair, request: Mapping[str, Any], mask: Image.Image) -> Result:
    return ours(pair.ours, request, PICTURE, mask)


def their_part(pair: Pair, request: Mapping[str, Any], mask: Image.Image) -> Result:
    return theirs(pair.theirs, request, PICTURE, mask)


def zeroed(weights: Any, network: str, *path: str) -> PyTree:
    """The same with one array of a network zeroed."""
    changed = jax.tree.map(lambda leaf: leaf, getattr(weights, network))
    node: Any = changed
    for name in path:
        node = node[name]
    node.set_value(jnp.zeros_like(node[...]))
    return weights._replace(**{network: changed})


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
def test_a_dropped_term_fails_by_far(pairs: Mapping[str, Pair], path: tuple[str, ...]) -> None:
    pair, request = pairs["base"], BASE | REQUESTS["prompts of two lengths"]
    lame = zeroed(pair.ours.pipeline.weights, *path)
    assert_far(ours(pair.ours, request, weights=lame), theirs(pair.theirs, request))


SPOILED: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "a caption that counts its padding": lambda row: {"lengths": row["lengths"] + 32},
    "a caption that loses a word": lambda row: {"lengths": row["lengths"] - 1},
    "prompts the wrong way round": lambda row: {
        name: row[name][::-1] for name in ("captions", "lengths")
    },
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_a_wrong_row_fails_by_far(
    pairs: Mapping[str, Pair], spoil: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    pair, request = pairs["base"], BASE | REQUESTS["prompts of two lengths"]
    made = ours(pair.ours, request, spoil=lambda row: {**row, **spoil(row)})
    assert_far(made, theirs(pair.theirs, request))


def test_padding_behind_captions_is_not_seen(pairs: Mapping[str, Pair]) -> None:
    """Whatever it holds, and however much of it there is."""
    pair, request = pairs["base"], BASE | REQUESTS["prompts of two lengths"]
    plain = ours(pair.ours, request)

    def noisy(row: dict[str, Any]) -> dict[str, Any]:
        behind = np.arange(row["captions"].shape[1])[:, None] >= row["lengths"][:, None, None]
        return {**row, "captions": jnp.where(behind, 1e3, row["captions"])}

    loud = ours(pair.ours, request, spoil=noisy)
    np.testing.assert_array_equal(plain.latents[-1], loud.latents[-1])
    longer = ours(pair.ours, request | {"max_sequence_length": 256})
    assert relative(longer.latents[-1], plain.latents[-1]) < RELATIVE
