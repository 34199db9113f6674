"""FLUX.2 klein compared with diffusers' pipeline in the same process, on small odd checkpoints.

Bounds as in test_flux.py: latents of each step to a relative 1e-4, images to 60 dB and two grey
levels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from diffusers import Flux2KleinPipeline
from PIL import Image

from models.sampling.flow_schedule import empirical_mu
from models.spec.request import RequestError
from tests.parity.distances import png
from tests.parity.pairs import Pair, drawn_by, drawn_from, pairs_of, zeroed
from tests.parity.programs import Programs
from tests.parity.test_flux import Result, assert_far, assert_same
from tests.parity.tiny_flux2 import make_flux2

ODD: dict[str, Any] = {
    "transformer": {
        "num_layers": 1,
        "num_single_layers": 4,
        "attention_head_dim": 14,
        "num_attention_heads": 5,
        "timestep_guidance_channels": 36,
        "mlp_ratio": 2.37,
        "axes_dims_rope": (2, 4, 6, 2),
        "rope_theta": 300,
        "eps": 1e-3,
    },
    "vae": {
        "block_out_channels": (8, 16),
        "decoder_block_out_channels": (4, 12),
        "latent_channels": 6,
        "mid_block_add_attention": False,
        "use_quant_conv": False,
        "batch_norm_eps": 0.03,
    },
    "text_encoder": {
        "num_hidden_layers": 27,
        "attention_bias": True,
        "head_dim": 6,
        "num_key_value_heads": 3,
    },
    "scheduler": {"use_dynamic_shifting": False, "shift": 2.5},
}
CHECKPOINTS: dict[str, dict[str, Any]] = {
    "base": {},
    "odd": ODD,
    "distilled": {"is_distilled": True, "seed": 20, "scheduler": {"time_shift_type": "linear"}},
}
PROMPT = "a red circle on a blue background"
LONG = f"{PROMPT} and a green square below the yellow triangle above the star " * 2
REQUESTS: dict[str, dict[str, Any]] = {
    "negative prompt": {"prompt": LONG, "negative_prompt": "star", "guidance_scale": 4.0},
    "no guidance": {"guidance_scale": 1.0, "width": 64, "height": 32},
    "panorama": {"guidance_scale": 1.0, "width": 272, "height": 32},
    "own sigmas, cut in the middle": {
        "prompt": LONG,
        "guidance_scale": 2.0,
        "sigmas": [1.0, 0.9, 0.35],
        "max_sequence_length": 45,
    },
}


def picture(seed: int, size: tuple[int, int]) -> Image.Image:
    fields = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(fields).resize(size, Image.Resampling.BILINEAR)


FROM_IMAGES: dict[str, tuple[Image.Image, ...]] = {
    "one": (picture(1, (107, 70)),),
    "three of other sizes": (picture(2, (66, 93)), picture(3, (131, 64)), picture(4, (80, 80))),
}
BASE = {
    "prompt": PROMPT,
    "width": 48,
    "height": 80,
    "num_inference_steps": 4,
    "max_sequence_length": 96,
    "seed": 1234,
}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Pair]:
    root = tmp_path_factory.mktemp("flux2")
    return pairs_of(root, CHECKPOINTS, make_flux2, Flux2KleinPipeline.from_pretrained)


def run_diffusers(
    pipeline: Flux2KleinPipeline, request: Mapping[str, Any], images: tuple[Image.Image, ...] = ()
) -> Result:
    arguments = dict(request)
    if negative := arguments.pop("negative_prompt", None):
        length = request["max_sequence_length"]
        embeds, _ = pipeline.encode_prompt(negative, max_sequence_length=length)
        arguments["negative_prompt_embeds"] = embeds
    return drawn_by(pipeline, arguments, image=[*images] or None)


def run_atelier(
    programs: Programs,
    request: Mapping[str, Any],
    images: tuple[Image.Image, ...] = (),
    **spoiled: Any,
) -> Result:
    paths = ("image", *(f"reference_images.{index}" for index in range(len(images))))
    return drawn_from(programs, request, dict(zip(paths, images, strict=False)), **spoiled)


@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_text_to_image(
    pairs: Mapping[str, Pair], checkpoint: str, request_name: str, record_property: Any
) -> None:
    """Distilled checkpoints ignore guidance."""
    pair, request = pairs[checkpoint], BASE | REQUESTS[request_name]
    assert_same(
        run_atelier(pair.atelier, request), run_diffusers(pair.diffusers, request), record_property
    )


@pytest.mark.parametrize("images", FROM_IMAGES.values(), ids=FROM_IMAGES)
@pytest.mark.parametrize("checkpoint", ["odd", "distilled"])
def test_references(
    pairs: Mapping[str, Pair],
    checkpoint: str,
    images: tuple[Image.Image, ...],
    record_property: Any,
) -> None:
    pair, request = pairs[checkpoint], BASE | {"guidance_scale": 2.0, "num_inference_steps": 3}
    result, expected = (
        run_atelier(pair.atelier, request, images),
        run_diffusers(pair.diffusers, request, images),
    )
    assert_same(result, expected, record_property)
    assert_far(run_atelier(pair.atelier, request), expected)


def test_references_have_an_order(pairs: Mapping[str, Pair]) -> None:
    pair, images = pairs["odd"], FROM_IMAGES["three of other sizes"]
    expected = run_diffusers(pair.diffusers, BASE, images)
    assert_far(run_atelier(pair.atelier, BASE, (images[1], images[0], images[2])), expected)


def test_a_large_reference_is_scaled_down(pairs: Mapping[str, Pair]) -> None:
    """The autoencoder's input is the centre crop of about one megapixel."""
    pair, image = pairs["distilled"], picture(5, (1501, 1203))
    captured: list[torch.Tensor] = []

    def stop(image: torch.Tensor, generator: Any) -> torch.Tensor:
        captured.append(image)
        raise InterruptedError

    reference = Flux2KleinPipeline(**pair.diffusers.components, is_distilled=True)
    reference._encode_vae_image = stop
    with pytest.raises(InterruptedError):
        run_diffusers(reference, BASE, (image,))
    inputs = pair.atelier.pipeline.prepare(BASE, {"image": png(image)}).inputs
    expected = captured[0][0].numpy().transpose(1, 2, 0)
    assert inputs["reference.0"].shape == expected.shape == (912, 1136, 3)
    np.testing.assert_allclose(inputs["reference.0"], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("images", "named"),
    [
        ({"image": picture(1, (100, 60))}, "image: must be at least 64 pixels"),
        (
            {"reference_images.0": picture(1, (600, 70))},
            "reference_images.0: must have an aspect ratio of at most 8",
        ),
    ],
)
def test_references_that_are_refused(
    pairs: Mapping[str, Pair], images: Mapping[str, Image.Image], named: str
) -> None:
    files = {path: png(image) for path, image in images.items()}
    with pytest.raises(RequestError, match=named):
        pairs["base"].atelier.pipeline.prepare(BASE, files)


DROPPED = {
    "modulation of the text": ("transformer", "conditions", "text_modulation", "linear", "kernel"),
    "gate of single blocks": ("transformer", "single_blocks", "middle", "gate", "kernel"),
    "key norm of the encoder": ("text_encoder", "blocks", "attention", "k_norm", "scale"),
}


@pytest.mark.parametrize("path", DROPPED.values(), ids=DROPPED)
def test_dropped_term_breaks_parity(pairs: Mapping[str, Pair], path: tuple[str, ...]) -> None:
    pair, request = pairs["base"], BASE | REQUESTS["negative prompt"]
    damaged = zeroed(pair.atelier.pipeline.weights, *path)
    assert_far(
        run_atelier(pair.atelier, request, weights=damaged), run_diffusers(pair.diffusers, request)
    )


SPOILED: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "states in another order": lambda row: {
        "prompt_embeds": jnp.roll(row["prompt_embeds"], row["prompt_embeds"].shape[-1] // 3, -1)
    },
    "padding of the text left out": lambda row: {
        "prompt_embeds": row["prompt_embeds"].at[:, -8:].set(0)
    },
    "prompts the wrong way round": lambda row: {"prompt_embeds": row["prompt_embeds"][::-1]},
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_wrong_row_breaks_parity(
    pairs: Mapping[str, Pair], spoil: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    pair, request = pairs["base"], BASE | REQUESTS["negative prompt"]
    result = run_atelier(pair.atelier, request, spoil=lambda row: {**row, **spoil(row)})
    assert_far(result, run_diffusers(pair.diffusers, request))


@pytest.mark.parametrize("tokens", [4, 256, 4096, 4300, 4301, 16384])
@pytest.mark.parametrize("steps", [1, 4, 50])
def test_the_shift_is_diffusers(tokens: int, steps: int) -> None:
    from diffusers.pipelines.flux2.pipeline_flux2_klein import compute_empirical_mu

    assert empirical_mu(tokens, steps) == compute_empirical_mu(tokens, steps)
