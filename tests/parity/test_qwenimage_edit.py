"""Qwen-Image-Edit compared with diffusers' pipeline in the same process, on small checkpoints.

Bounds as in test_flux.py. The reference's encoder gets a mask of the image tokens
(`tests/parity/tiny_qwenimage.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_inpaint
from diffusers.pipelines.qwenimage.pipeline_qwenimage_edit_inpaint import calculate_dimensions
from PIL import Image, ImageOps

from models import registry
from models.media.scaling import size_of_area
from models.spec.request import RequestError
from tests import coarse
from tests.parity.distances import png
from tests.parity.lazy_dict import LazyDict
from tests.parity.pairs import MASK, run_atelier, zeroed
from tests.parity.programs import Programs
from tests.parity.step_latents import StepLatents
from tests.parity.test_flux import Result, assert_far, assert_same
from tests.parity.test_qwenimage import LONG
from tests.parity.tiny_qwenimage import edits, make_edit

ODD: dict[str, Any] = {
    "transformer": {"num_layers": 1, "num_attention_heads": 5, "axes_dims_rope": (2, 8, 4)},
    "vae": {"z_dim": 5, "dim_mult": [2, 1, 1, 2, 1]},
    "text_encoder": {
        "hidden_size": 42,
        "num_hidden_layers": 2,
        "num_attention_heads": 7,
        "num_key_value_heads": 1,
        "rms_norm_eps": 1e-3,
        "rope_parameters": {"rope_theta": 1e4, "rope_type": "default", "mrope_section": [1, 1, 1]},
    },
    "vision": {
        "hidden_size": 24,
        "num_heads": 3,
        "patch_size": 3,
        "spatial_merge_size": 3,
        "temporal_patch_size": 1,
        "window_size": 20,
        "fullatt_block_indexes": [0],
    },
    "scheduler": {"use_dynamic_shifting": False, "shift": 2.5, "shift_terminal": None},
}
CHECKPOINTS: dict[str, dict[str, Any]] = {"published": {}, "odd": ODD}
BASE = {
    "prompt": "a red circle on a blue background",
    "width": 96,
    "height": 160,
    "num_inference_steps": 3,
    "max_sequence_length": 440,
    "seed": 1234,
}
REQUESTS: dict[str, dict[str, Any]] = {
    # `BASE`'s seed would make the decoder normalize a vector close to zero. Rounding then becomes
    # 23 grey levels on CPUs with AVX-512.
    "no negative prompt": {"seed": 1},
    "prompts of two lengths": {"prompt": LONG, "negative_prompt": " ", "true_cfg_scale": 4.0},
}
FIELDS = np.random.default_rng(4).integers(0, 256, (5, 4, 3), dtype=np.uint8)
PICTURE = Image.fromarray(FIELDS).resize((120, 170), Image.Resampling.NEAREST)


class Pair:
    """One checkpoint, loaded by diffusers and by Atelier."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self.folder = make_edit(folder, **config)
        self.diffusers = edits(self.folder)
        with coarse.compiled():
            loaded = registry.load("tiny", str(self.folder), "float32", {})
        self.atelier = Programs(loaded, coarse.OPTIONS)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Pair]:
    root = tmp_path_factory.mktemp("edit")
    return LazyDict(lambda name: Pair(root / name, CHECKPOINTS[name]))


def run_diffusers(
    pipeline: Any, request: Mapping[str, Any], image: Any, **images: Image.Image
) -> Result:
    pipeline.set_progress_bar_config(disable=True)
    latents = StepLatents()

    arguments = {name: value for name, value in request.items() if name != "seed"}
    generator = torch.Generator("cpu").manual_seed(request["seed"])
    output = pipeline(
        image, **arguments, **images, generator=generator, callback_on_step_end=latents.keep
    )
    return Result(latents, np.asarray(output.images[0]))


@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_edits(
    pairs: Mapping[str, Pair], checkpoint: str, request_name: str, record_property: Any
) -> None:
    pair, request = pairs[checkpoint], BASE | REQUESTS[request_name]
    expected = run_diffusers(pair.diffusers, request, PICTURE)
    assert_same(run_atelier(pair.atelier, request, PICTURE), expected, record_property)
    if request_name == "no negative prompt":
        assert_far(run_atelier(pair.atelier, request, ImageOps.mirror(PICTURE)), expected)


@pytest.mark.parametrize("strength", [1.0, 0.7])
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_inpainting(
    pairs: Mapping[str, Pair],
    checkpoint: str,
    strength: float,
    record_property: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """diffusers generates at the encoder's image area, regardless of the requested size."""
    pair, area = pairs[checkpoint], 128 * 128
    monkeypatch.setattr(
        pipeline_qwenimage_edit_inpaint,
        "calculate_dimensions",
        lambda _area, ratio: calculate_dimensions(area, ratio),
    )
    pipeline: Any = pair.atelier.pipeline
    monkeypatch.setattr(pipeline, "prompt_format", replace(pipeline.prompt_format, encoder_px=area))
    width, height = size_of_area(PICTURE.size, area)
    guided = REQUESTS["prompts of two lengths"] if strength < 1 else {}
    request = {**BASE, **guided, "width": width, "height": height, "strength": strength}
    paints = edits(pair.folder, "QwenImageEditInpaintPipeline")
    expected = run_diffusers(paints, request, PICTURE, mask_image=MASK)
    assert_same(run_atelier(pair.atelier, request, PICTURE, MASK), expected, record_property)
    if strength == 1:
        assert_far(run_atelier(pair.atelier, request, PICTURE, ImageOps.invert(MASK)), expected)
        reversed_references = run_atelier(
            pair.atelier,
            request,
            PICTURE,
            MASK,
            spoil=lambda row: {**row, "references": row["references"][::-1]},
        )
        assert_far(reversed_references, expected)


DROPPED = {
    "bias of the tower": ("vision", "blocks", "qkv", "bias"),
    "norm of the tower's tokens": ("vision", "merger_norm", "scale"),
}


@pytest.mark.parametrize("path", DROPPED.values(), ids=DROPPED)
def test_dropped_term_breaks_parity(pairs: Mapping[str, Pair], path: tuple[str, ...]) -> None:
    pair = pairs["published"]
    damaged = zeroed(pair.atelier.pipeline.weights, *path)
    expected = run_diffusers(pair.diffusers, BASE, PICTURE)
    assert_far(run_atelier(pair.atelier, BASE, PICTURE, weights=damaged), expected)


def test_missing_reference_breaks_parity(pairs: Mapping[str, Pair]) -> None:
    pair = pairs["published"]
    expected = run_diffusers(pair.diffusers, BASE, PICTURE)
    result = run_atelier(
        pair.atelier,
        BASE,
        PICTURE,
        spoil=lambda row: {**row, "references": jnp.zeros_like(row["references"])},
    )
    assert_far(result, expected)


def test_invalid_requests_are_named(pairs: Mapping[str, Pair]) -> None:
    pipeline = pairs["published"].atelier.pipeline
    with pytest.raises(RequestError, match="is needed"):
        pipeline.prepare(BASE, {})
    for size, words in (((9, 3000), "200:1"), ((1, 5000), "too narrow")):
        with pytest.raises(RequestError, match=words) as error:
            pipeline.prepare(BASE, {"image": png(Image.new("RGB", size))})
        assert error.value.field == "image"


def test_the_spec_is_of_edits(pairs: Mapping[str, Pair]) -> None:
    spec = pairs["published"].atelier.pipeline.spec
    assert spec.tasks == ("image-to-image", "inpainting") and spec.sized_area_px == 1 << 20
    assert "reference_images" not in spec.fields
    assert "strength" not in spec.defaults_for("image-to-image")
    assert spec.defaults_for("inpainting")["strength"] == 0.6


@pytest.mark.parametrize(
    ("size", "expected"),
    [((100, 100), (1024, 1024)), ((1920, 1080), (1376, 768)), ((3, 4), (896, 1184))],
)
def test_an_image_is_scaled_to_a_megapixel(
    size: tuple[int, int], expected: tuple[int, int]
) -> None:
    assert size_of_area(size, 1 << 20) == expected
