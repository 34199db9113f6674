"""Chroma compared with diffusers' pipelines in the same process, on small odd checkpoints.

The reference's attention masks are truth values (`tiny_chroma`). Bounds as in test_flux.py: latents
of each step to a relative 1e-4, images to 60 dB and two grey levels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from tests.parity.pairs import MASK, Pair, drawn_by, pairs_of, run_atelier, zeroed
from tests.parity.test_flux import PICTURE, Result, assert_far, assert_same
from tests.parity.tiny_chroma import (
    MaskedChroma,
    MaskedFromImage,
    MaskedInpainting,
    make_chroma,
)

ODD: dict[str, Any] = {
    "transformer": {
        "num_layers": 1,
        "num_single_layers": 2,
        "attention_head_dim": 12,
        "num_attention_heads": 5,
        "axes_dims_rope": (2, 6, 4),
        "approximator_num_channels": 12,
        "approximator_hidden_dim": 46,
        "approximator_layers": 1,
    },
    "vae": {"block_out_channels": (8, 16), "latent_channels": 6, "mid_block_add_attention": False},
    "t5": {"num_layers": 2, "num_heads": 3},
    "scheduler": {"shift": 3.0, "use_beta_sigmas": False},
}
CHECKPOINTS: dict[str, dict[str, Any]] = {"as published": {}, "odd": ODD}
PROMPT = "a red circle on a blue background"
LONG = f"{PROMPT} and a green square below the yellow triangle above the star"
REQUESTS: dict[str, dict[str, Any]] = {
    "prompts of two lengths": {"prompt": LONG, "negative_prompt": "star", "guidance_scale": 4.0},
    "no guidance": {"guidance_scale": 1.0, "negative_prompt": "unread", "width": 64, "height": 32},
    "no negative prompt, sigmas": {
        "prompt": "star",
        "guidance_scale": 2.0,
        "sigmas": [1.0, 0.9, 0.8, 0.35],
        "num_inference_steps": 4,
    },
    "prompt without padding": {"prompt": LONG, "guidance_scale": 3.0, "max_sequence_length": 10},
}
BASE = {
    "prompt": PROMPT,
    "width": 48,
    "height": 80,
    "num_inference_steps": 4,
    "max_sequence_length": 40,
    "seed": 1234,
}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Pair]:
    root = tmp_path_factory.mktemp("chroma")
    return pairs_of(root, CHECKPOINTS, make_chroma, MaskedChroma.from_pretrained)


def run_diffusers(
    base: MaskedChroma,
    request: Mapping[str, Any],
    image: Image.Image | None = None,
    mask: Image.Image | None = None,
) -> Result:
    kind = MaskedChroma if image is None else MaskedFromImage
    pipeline = (kind if mask is None else MaskedInpainting)(**base.components)
    if mask is not None:  # this pipeline reads a field that only converted configs have
        pipeline.transformer.register_to_config(guidance_embeds=False)
    return drawn_by(pipeline, request, image=image, mask_image=mask)


@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_text_to_image(
    pairs: Mapping[str, Pair], checkpoint: str, request_name: str, record_property: Any
) -> None:
    pair, request = pairs[checkpoint], BASE | REQUESTS[request_name]
    result = run_atelier(pair.atelier, request)
    assert_same(result, run_diffusers(pair.diffusers, request), record_property)


@pytest.mark.parametrize("mask", [None, MASK], ids=["whole", "masked"])
@pytest.mark.parametrize("strength", [1.0, 0.6])
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_image_to_image(
    pairs: Mapping[str, Pair],
    checkpoint: str,
    strength: float,
    mask: Image.Image | None,
    record_property: Any,
) -> None:
    pair, request = pairs[checkpoint], BASE | {"guidance_scale": 3.0, "strength": strength}
    result = run_atelier(pair.atelier, request, PICTURE, mask)
    assert_same(result, run_diffusers(pair.diffusers, request, PICTURE, mask), record_property)


DROPPED = {
    "norm of the approximator": ("transformer", "conditions", "layers", "norm", "scale"),
    "bias of the approximator": ("transformer", "conditions", "last", "bias"),
    "key norm": ("transformer", "single_blocks", "heads", "k_norm", "scale"),
    "position bias of T5": ("text_encoder", "relative_bias", "embedding"),
}


@pytest.mark.parametrize("path", DROPPED.values(), ids=DROPPED)
def test_dropped_term_breaks_parity(pairs: Mapping[str, Pair], path: tuple[str, ...]) -> None:
    pair, request = pairs["as published"], BASE | REQUESTS["prompts of two lengths"]
    damaged = zeroed(pair.atelier.pipeline.weights, *path)
    result = run_atelier(pair.atelier, request, weights=damaged)
    assert_far(result, run_diffusers(pair.diffusers, request))


def loud_after_one(row: dict[str, Any]) -> dict[str, Any]:
    """Copy a row with large numbers in the padding of its captions, except its first token."""
    tokens = np.arange(row["captions"].shape[1])
    is_unread = tokens[:, None] > row["lengths"][:, None, None]
    return {**row, "captions": jnp.where(is_unread, 1e3, row["captions"])}


SPOILED: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "a second token of padding": lambda row: {**row, "lengths": row["lengths"] + 1},
    "no token of padding": lambda row: {**row, "lengths": row["lengths"] - 1},
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_padding_has_no_effect_beyond_one_token(
    pairs: Mapping[str, Pair], spoil: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    pair, request = pairs["as published"], BASE | REQUESTS["prompts of two lengths"]
    plain = run_atelier(pair.atelier, request)
    loud = run_atelier(pair.atelier, request, spoil=loud_after_one)
    np.testing.assert_array_equal(plain.latents[-1], loud.latents[-1])
    assert_far(run_atelier(pair.atelier, request, spoil=spoil), plain)


def test_weights_are_all_read(pairs: Mapping[str, Pair]) -> None:
    """The parameter count equals diffusers', so no parameter keeps its initial value."""
    pair = pairs["as published"]
    leaves = jax.tree.leaves(pair.atelier.pipeline.weights.transformer)
    expected = sum(p.numel() for p in pair.diffusers.transformer.parameters())
    assert sum(leaf.size for leaf in leaves) == expected
