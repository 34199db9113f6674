"""FLUX.2 dev compared with diffusers' pipeline in the same process, on small odd checkpoints.

Bounds as in test_flux.py: latents of each step to a relative 1e-4, images to 60 dB and two grey
levels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from diffusers import Flux2Pipeline

from tests.parity.pairs import Pair, drawn_by, pairs_of, zeroed
from tests.parity.test_flux import assert_far, assert_same
from tests.parity.test_flux2 import FROM_IMAGES, LONG, ODD, PROMPT, picture, run_atelier
from tests.parity.tiny_flux2 import make_flux2_dev

TEXT = {"num_hidden_layers": 30, "head_dim": 6, "num_key_value_heads": 3}
CHECKPOINTS: dict[str, dict[str, Any]] = {
    "dev": {},
    "odd": {**ODD, "text_encoder": TEXT, "padding_side": "right"},
}
REQUESTS: dict[str, dict[str, Any]] = {
    "a long prompt": {"prompt": LONG},
    "little guidance": {"guidance_scale": 1.0, "width": 64, "height": 32},
    "own sigmas, cut in the middle": {
        "prompt": LONG,
        "sigmas": [1.0, 0.9, 0.35],
        "max_sequence_length": 56,
    },
}
BASE = {
    "prompt": PROMPT,
    "width": 48,
    "height": 80,
    "num_inference_steps": 3,
    "guidance_scale": 2.5,
    "max_sequence_length": 96,
    "seed": 1234,
}
TEN = tuple(picture(seed, (64 + seed, 80)) for seed in range(10))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Pair]:
    root = tmp_path_factory.mktemp("flux2-dev")
    return pairs_of(root, CHECKPOINTS, make_flux2_dev, Flux2Pipeline.from_pretrained)


@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_text_to_image(
    pairs: Mapping[str, Pair], checkpoint: str, request_name: str, record_property: Any
) -> None:
    """The odd checkpoint's tokenizer pads on the right."""
    pair, request = pairs[checkpoint], BASE | REQUESTS[request_name]
    assert_same(
        run_atelier(pair.atelier, request), drawn_by(pair.diffusers, request), record_property
    )


@pytest.mark.parametrize(
    "images", [*FROM_IMAGES.values(), TEN], ids=[*FROM_IMAGES, "ten, the most"]
)
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_references(
    pairs: Mapping[str, Pair], checkpoint: str, images: tuple[Any, ...], record_property: Any
) -> None:
    pair = pairs[checkpoint]
    result = run_atelier(pair.atelier, BASE, images)
    expected = drawn_by(pair.diffusers, BASE, image=[*images])
    assert_same(result, expected, record_property)
    assert_far(run_atelier(pair.atelier, BASE), expected)


DROPPED = {
    "guidance": ("transformer", "conditions", "guidance_in", "second", "kernel"),
    "values of the encoder": ("text_encoder", "blocks", "attention", "v", "kernel"),
}


@pytest.mark.parametrize("path", DROPPED.values(), ids=DROPPED)
def test_dropped_term_breaks_parity(pairs: Mapping[str, Pair], path: tuple[str, ...]) -> None:
    pair = pairs["dev"]
    damaged = zeroed(pair.atelier.pipeline.weights, *path)
    assert_far(run_atelier(pair.atelier, BASE, weights=damaged), drawn_by(pair.diffusers, BASE))


def test_zeroed_padding_breaks_parity(pairs: Mapping[str, Pair]) -> None:
    """The transformer attends to the features of the padding on the left."""

    def without_padding(row: dict[str, Any]) -> dict[str, Any]:
        embeds = row["prompt_embeds"]
        return {**row, "prompt_embeds": embeds.at[:, :8].set(np.float32(0))}

    pair = pairs["dev"]
    result = run_atelier(pair.atelier, BASE, spoil=without_padding)
    assert_far(result, drawn_by(pair.diffusers, BASE))
