"""Krea 2 compared with diffusers' pipeline in the same process, on small odd checkpoints.

Bounds as in test_flux.py: latents of each step to a relative 1e-4, images to 60 dB and two grey
levels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import pytest
from diffusers import Krea2Pipeline

from models.text.chat import DESCRIBING, DESCRIBING_CUT
from tests.parity.distances import relative
from tests.parity.pairs import (
    Pair,
    drawn_by,
    loud_behind_captions,
    pairs_of,
    run_atelier,
    zeroed,
)
from tests.parity.test_flux import RELATIVE, assert_far, assert_same
from tests.parity.tiny_krea2 import make_krea2

DISTILLED: dict[str, Any] = {
    "transformer": {
        "num_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 6,
        "axes_dims_rope": (2, 8, 4),
        "rope_theta": 300.0,
        "norm_eps": 1e-3,
        "timestep_embed_dim": 22,
        "num_layerwise_text_blocks": 1,
        "num_refiner_text_blocks": 0,
    },
    "vae": {
        "base_dim": 6,
        "z_dim": 5,
        "dim_mult": [3, 1],
        "num_res_blocks": 2,
        "temperal_downsample": [True],
    },
    "text_encoder": {"num_hidden_layers": 3, "num_attention_heads": 5, "num_key_value_heads": 1},
    "states": (3, 1, 2),
    "is_distilled": True,
}
CHECKPOINTS: dict[str, dict[str, Any]] = {"raw": {}, "distilled": DISTILLED}
PROMPT = "a red circle on a blue background"
LONG = f"{PROMPT} and a green square below the yellow triangle above the star " * 2
REQUESTS: dict[str, dict[str, Any]] = {
    "no guidance": {"guidance_scale": 0.0, "negative_prompt": "unread"},
    "prompts of two lengths": {"prompt": LONG, "negative_prompt": "star", "guidance_scale": 3.0},
    "weak guidance without a negative prompt": {
        "guidance_scale": 0.5,
        "width": 64,
        "height": 32,
    },
    "sigmas": {
        "negative_prompt": LONG,
        "guidance_scale": 5.0,
        "sigmas": [1.0, 0.9, 0.8, 0.35],
        "num_inference_steps": 4,
    },
}
BASE = {
    "prompt": PROMPT,
    "width": 64,
    "height": 80,
    "num_inference_steps": 4,
    "max_sequence_length": 300,
    "seed": 1234,
}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Pair]:
    root = tmp_path_factory.mktemp("krea2")
    return pairs_of(root, CHECKPOINTS, make_krea2, Krea2Pipeline.from_pretrained)


@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_text_to_image(
    pairs: Mapping[str, Pair], checkpoint: str, request_name: str, record_property: Any
) -> None:
    pair, request = pairs[checkpoint], BASE | REQUESTS[request_name]
    result = run_atelier(pair.atelier, request)
    assert_same(result, drawn_by(pair.diffusers, request), record_property)


def test_prompt_that_is_too_long_keeps_the_templates_end(
    pairs: Mapping[str, Pair], record_property: Any
) -> None:
    """diffusers counts five tokens for the end, which has more with this vocabulary."""
    pair = pairs["raw"]
    head, end = (
        pair.diffusers.tokenizer(part)["input_ids"]
        for part in (DESCRIBING.before, DESCRIBING.after)
    )
    read = len(head) - DESCRIBING_CUT + 20
    request = BASE | {"prompt": LONG, "guidance_scale": 0.0, "max_sequence_length": read + 5}
    longer = request | {"max_sequence_length": read + len(end)}
    drafted = pair.atelier.pipeline.prepare(longer, {})
    (warning,) = drafted.warnings
    assert warning.field == "prompt" and LONG.strip().endswith(warning.message[-5:-1])
    assert [*drafted.inputs["ids"][0][-len(end) :]] == end
    result = run_atelier(pair.atelier, longer)
    assert_same(result, drawn_by(pair.diffusers, request), record_property)


DROPPED = {
    "gate of the attention": ("transformer", "blocks", "attention", "gate", "kernel"),
    "vectors of a block": ("transformer", "blocks", "table"),
    "vectors of the last norm": ("transformer", "out_table"),
    "states of a token": ("transformer", "text_fusion", "layer_blocks", "attention", "v", "kernel"),
    "tokens of a text": ("transformer", "text_fusion", "token_blocks", "attention", "v", "kernel"),
    "key norm": ("transformer", "blocks", "attention", "k_norm", "scale"),
}


@pytest.mark.parametrize("path", DROPPED.values(), ids=DROPPED)
def test_dropped_term_breaks_parity(pairs: Mapping[str, Pair], path: tuple[str, ...]) -> None:
    pair, request = pairs["raw"], BASE | REQUESTS["prompts of two lengths"]
    damaged = zeroed(pair.atelier.pipeline.weights, *path)
    result = run_atelier(pair.atelier, request, weights=damaged)
    assert_far(result, drawn_by(pair.diffusers, request))


SPOILED: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "a caption that counts its padding": lambda row: {"lengths": row["lengths"] + 32},
    "prompts the wrong way round": lambda row: {
        name: row[name][::-1] for name in ("captions", "lengths")
    },
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_wrong_row_breaks_parity(
    pairs: Mapping[str, Pair], spoil: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    pair, request = pairs["raw"], BASE | REQUESTS["prompts of two lengths"]
    result = run_atelier(pair.atelier, request, spoil=lambda row: {**row, **spoil(row)})
    assert_far(result, drawn_by(pair.diffusers, request))


def test_caption_padding_has_no_effect(pairs: Mapping[str, Pair]) -> None:
    """Neither the padding's content nor its length affects the latents."""
    pair, request = pairs["raw"], BASE | REQUESTS["prompts of two lengths"]
    plain = run_atelier(pair.atelier, request)
    loud = run_atelier(pair.atelier, request, spoil=loud_behind_captions)
    np.testing.assert_array_equal(plain.latents[-1], loud.latents[-1])
    longer = run_atelier(pair.atelier, request | {"max_sequence_length": 320})
    assert relative(longer.latents[-1], plain.latents[-1]) < RELATIVE


def test_weights_are_all_read(pairs: Mapping[str, Pair]) -> None:
    """The parameter count equals diffusers', so no parameter keeps its initial value."""
    pair = pairs["raw"]
    leaves = jax.tree.leaves(pair.atelier.pipeline.weights.transformer)
    expected = sum(p.numel() for p in pair.diffusers.transformer.parameters())
    assert sum(leaf.size for leaf in leaves) == expected
