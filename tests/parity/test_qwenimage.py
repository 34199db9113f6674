"""Qwen-Image compared with diffusers' pipelines in the same process, on small odd checkpoints.

Bounds as in test_flux.py: latents of each step to a relative 1e-4, images to 60 dB and two grey
levels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from diffusers import QwenImageImg2ImgPipeline, QwenImageInpaintPipeline, QwenImagePipeline
from PIL import Image, ImageOps

from models import registry
from models.interface.denoising_pipeline import DenoisingPipeline
from models.spec.request import RequestError
from tests import coarse
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
from tests.parity.programs import Programs
from tests.parity.test_flux import PICTURE, RELATIVE, Result, assert_far, assert_same
from tests.parity.tiny_qwenimage import make_qwenimage

ODD: dict[str, Any] = {
    "transformer": {"num_layers": 2, "num_attention_heads": 5, "axes_dims_rope": (2, 8, 4)},
    "vae": {
        "base_dim": 6,
        "z_dim": 5,
        "dim_mult": [3, 1],
        "num_res_blocks": 2,
        "temperal_downsample": [True],
    },
    "text_encoder": {
        "hidden_size": 42,
        "num_hidden_layers": 2,
        "num_attention_heads": 7,
        "num_key_value_heads": 1,
        "rms_norm_eps": 1e-3,
        "rope_parameters": {"rope_theta": 1e4, "rope_type": "default", "mrope_section": [1, 1, 1]},
    },
    "scheduler": {"use_dynamic_shifting": False, "shift": 2.5, "shift_terminal": None},
}
CHECKPOINTS: dict[str, dict[str, Any]] = {"published": {}, "odd": ODD}
PROMPT = "a red circle on a blue background"
LONG = f"{PROMPT} and a green square below the yellow triangle above the star " * 2
REQUESTS: dict[str, dict[str, Any]] = {
    "no negative prompt": {},
    "prompts of two lengths": {"prompt": LONG, "negative_prompt": "star", "true_cfg_scale": 4.0},
    "empty negative prompt": {
        "negative_prompt": "",
        "true_cfg_scale": 2.5,
        "width": 64,
        "height": 32,
    },
    "scale that guides nothing": {"negative_prompt": LONG, "true_cfg_scale": 1.0},
    "sigmas": {
        "negative_prompt": LONG,
        "true_cfg_scale": 5.0,
        "sigmas": [1.0, 0.9, 0.8, 0.35],
        "num_inference_steps": 4,
    },
    "cut in the middle": {
        "prompt": LONG,
        "negative_prompt": "star",
        "true_cfg_scale": 3.0,
        "max_sequence_length": 150,
    },
}
FROM_IMAGE: dict[str, dict[str, Any]] = {
    "default strength": {"strength": 0.6, "negative_prompt": LONG, "true_cfg_scale": 3.0},
    "full strength": {"strength": 1.0},
}
BASE = {
    "prompt": PROMPT,
    "width": 56,
    "height": 80,
    "num_inference_steps": 4,
    "max_sequence_length": 300,
    "seed": 1234,
}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Pair]:
    root = tmp_path_factory.mktemp("qwenimage")
    return pairs_of(root, CHECKPOINTS, make_qwenimage, QwenImagePipeline.from_pretrained)


def run_diffusers(
    base: QwenImagePipeline,
    request: Mapping[str, Any],
    image: Image.Image | None = None,
    mask: Image.Image | None = None,
) -> Result:
    kind = QwenImagePipeline if image is None else QwenImageImg2ImgPipeline
    pipeline = (kind if mask is None else QwenImageInpaintPipeline)(**base.components)
    return drawn_by(pipeline, request, image=image, mask_image=mask)


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
    pair, request = pairs[checkpoint], BASE | {"strength": strength}
    result = run_atelier(pair.atelier, request, PICTURE, MASK)
    expected = run_diffusers(pair.diffusers, request, PICTURE, MASK)
    assert_same(result, expected, record_property)
    assert_far(run_atelier(pair.atelier, request, PICTURE, ImageOps.invert(MASK)), expected)


DROPPED = {
    "norm of captions": ("transformer", "text_norm", "scale"),
    "bias of the image's modulation": (
        *("transformer", "conditions", "image_modulation"),
        *("linear", "bias"),
    ),
    "key norm of the text": (
        *("transformer", "double_blocks", "text", "attention"),
        *("k_norm", "scale"),
    ),
    "last modulation": ("transformer", "conditions", "out_modulation", "linear", "bias"),
    "bias of the encoder's values": ("text_encoder", "blocks", "attention", "v", "bias"),
}


@pytest.mark.parametrize("path", DROPPED.values(), ids=DROPPED)
def test_dropped_term_breaks_parity(pairs: Mapping[str, Pair], path: tuple[str, ...]) -> None:
    pair, request = pairs["published"], BASE | REQUESTS["prompts of two lengths"]
    damaged = zeroed(pair.atelier.pipeline.weights, *path)
    assert_far(
        run_atelier(pair.atelier, request, weights=damaged), run_diffusers(pair.diffusers, request)
    )


SPOILED: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "a caption that counts its padding": lambda row: {"lengths": row["lengths"] + 32},
    "a caption that loses its last words": lambda row: {"lengths": row["lengths"] - 30},
    "prompts the wrong way round": lambda row: {
        name: row[name][::-1] for name in ("captions", "lengths")
    },
    "one token more of the template": lambda row: {
        "captions": row["captions"][:, 1:],
        "lengths": row["lengths"] - 1,
    },
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_wrong_row_breaks_parity(
    pairs: Mapping[str, Pair], spoil: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    pair, request = pairs["published"], BASE | REQUESTS["prompts of two lengths"]
    result = run_atelier(pair.atelier, request, spoil=lambda row: {**row, **spoil(row)})
    assert_far(result, run_diffusers(pair.diffusers, request))


def test_missing_guidance_norms_break_parity(pairs: Mapping[str, Pair]) -> None:
    pair, request = pairs["odd"], BASE | REQUESTS["prompts of two lengths"]
    with coarse.compiled():
        damaged = registry.load("lame", str(pair.folder), "float32", {})
    damaged.combine_prompts = partial(  # type: ignore[attr-defined]
        DenoisingPipeline.combine_prompts, damaged
    )
    assert_far(
        run_atelier(Programs(damaged, coarse.OPTIONS), request),
        run_diffusers(pair.diffusers, request),
    )


def test_caption_padding_has_no_effect(pairs: Mapping[str, Pair]) -> None:
    """Neither the padding's content nor its length affects the latents."""
    pair, request = pairs["published"], BASE | REQUESTS["prompts of two lengths"]
    plain = run_atelier(pair.atelier, request)

    loud = run_atelier(pair.atelier, request, spoil=loud_behind_captions)
    np.testing.assert_array_equal(plain.latents[-1], loud.latents[-1])
    longer = run_atelier(pair.atelier, request | {"max_sequence_length": 320})
    assert relative(longer.latents[-1], plain.latents[-1]) < RELATIVE


@pytest.mark.parametrize(
    ("request_fields", "named"),
    [({"num_inference_steps": 1}, "num_inference_steps"), ({"sigmas": [1.0]}, "sigmas")],
    ids=str,
)
def test_single_step_of_a_stretched_schedule_is_rejected(
    pairs: Mapping[str, Pair], request_fields: dict[str, Any], named: str
) -> None:
    """diffusers divides zero by zero there. An unstretched schedule supports one step."""
    with pytest.raises(RequestError, match="2 or more") as error:
        pairs["published"].atelier.pipeline.prepare(BASE | request_fields, {})
    assert error.value.field == named
    assert len(pairs["odd"].atelier.pipeline.prepare(BASE | request_fields, {}).steps) == 1


def test_weights_are_all_read(pairs: Mapping[str, Pair]) -> None:
    """The parameter count equals diffusers', so no parameter keeps its initial value."""
    pair = pairs["published"]
    leaves = jax.tree.leaves(pair.atelier.pipeline.weights.transformer)
    expected = sum(p.numel() for p in pair.diffusers.transformer.parameters())
    assert sum(leaf.size for leaf in leaves) == expected
