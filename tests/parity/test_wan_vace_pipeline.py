"""VACE's pipeline compared with diffusers', from prompts, frames and references.

Bounds as in `tests.parity.test_wan`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from diffusers import WanVACEPipeline
from PIL import Image

from models.wan.vace_pipeline import VacePipeline
from tests.parity.distances import png, psnr_db
from tests.parity.test_wan import BASE as REQUEST
from tests.parity.test_wan import PROMPTED, PSNR_DB, RELATIVE, Result
from tests.parity.test_wan_vace_conditions import (
    BLACK,
    CLIP,
    FRAMES,
    GREY,
    MASKS,
    REFERENCES,
    SIZE,
    WHITE,
    in_size,
)
from tests.parity.tiny import Config
from tests.parity.wan_pairs import WanPair, assert_the_same_clip, off

SHAPE = (FRAMES, *SIZE[::-1], 3)

CHECKPOINTS: dict[str, Config] = {
    "usual": {"vace": {}},
    "odd": {
        "vace": {"vace_layers": (0, 1)},
        "transformer": {
            "patch_size": (1, 1, 2),
            "num_attention_heads": 5,
            "attention_head_dim": 14,
            "num_layers": 2,
            "eps": 1e-3,
            "cross_attn_norm": False,
        },
        "transformer_2": {"num_attention_heads": 3, "num_layers": 3, "patch_size": (1, 1, 2)},
        "boundary_ratio": 0.9,
        "scheduler": {"kind": "FlowMatchEulerDiscreteScheduler", "shift": 3.0},
        "vae": {
            "z_dim": 3,
            "dim_mult": [1, 2, 3],
            "temperal_downsample": [True, True],
            "scale_factor_spatial": 4,
        },
        "t5": {"num_heads": 3, "d_kv": 11, "d_model": 24},
    },
}
Images = Mapping[str, Image.Image]


class Case(NamedTuple):
    """Fields, files by path, and the equivalent arguments of diffusers."""

    fields: dict[str, Any]
    files: Images
    diffusers: dict[str, Any]


def listed(field: str, images: list[Image.Image]) -> Images:
    return {f"{field}.{index}": image for index, image in enumerate(images)}


REST = FRAMES - 4
CASES = {
    "plain text": Case(PROMPTED, {}, {}),
    "references alone": Case(
        PROMPTED, listed("reference_images", REFERENCES[:2]), {"reference_images": REFERENCES[:2]}
    ),
    "control video, not guided": Case(
        {"guidance_scale": 1.0, "conditioning_scale": [0.7]},
        listed("control_video", CLIP),
        {"video": in_size(CLIP), "conditioning_scale": 0.7},
    ),
    "mask and reference, each hint by its factor": Case(
        {**PROMPTED, "conditioning_scale": [0.6, 1.3]},
        {
            **listed("control_video", CLIP),
            **listed("mask_video", MASKS),
            **listed("reference_images", REFERENCES[1:2]),
        },
        {
            "video": in_size(CLIP),
            "mask": in_size(MASKS),
            "reference_images": REFERENCES[1:2],
            "conditioning_scale": [0.6, 1.3],
        },
    ),
    "extension of a video": Case(
        PROMPTED,
        {**listed("control_video", CLIP[:4]), **listed("mask_video", [BLACK])},
        {
            "video": [*in_size(CLIP[:4]), *[GREY] * REST],
            "mask": [*[BLACK] * 4, *[WHITE] * REST],
        },
    ),
    "first and last frame": Case(
        {},
        {"image": CLIP[0], "last_image": CLIP[1]},
        {
            "video": [*in_size(CLIP[:1]), *[GREY] * (FRAMES - 2), *in_size(CLIP[1:2])],
            "mask": [BLACK, *[WHITE] * (FRAMES - 2), BLACK],
        },
    ),
}


@pytest.fixture(scope="module", autouse=True)
def compiled_coarsely() -> None:
    """Override the folder's fixture: compile options depend on the request."""


class Pair(WanPair):
    """One checkpoint, loaded by Atelier and by diffusers."""

    def drawn(
        self, case: Case, spoil: Callable[[Any], Any] = lambda row: row, **changed: Any
    ) -> Result:
        """Run a case; `spoil` corrupts the row after encoding."""
        files = {path: png(image) for path, image in case.files.items()}
        return self.drawn_by_atelier({**case.fields, **changed}, files, spoil)

    def expected(self, case: Case) -> Result:
        return self.drawn_by_diffusers({**REQUEST, **case.fields, **case.diffusers})


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("vace")
    return cache(lambda name: Pair(root / name, CHECKPOINTS[name], VacePipeline, WanVACEPipeline))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_video_matches_diffusers(pairs: Any, name: str, case: str) -> None:
    pair, chosen = pairs(name), CASES[case]
    assert_the_same_clip(pair.drawn(chosen), pair.expected(chosen), SHAPE)


def test_vace_experts_share_the_steps_as_in_diffusers(pairs: Any) -> None:
    steps = pairs("odd").atelier.prepare({**REQUEST, **PROMPTED}, {}).steps
    assert [step.program.network for step in steps] == ["transformer"] + ["transformer_2"] * 3


def assert_far(output: Result, expected: Result) -> None:
    """Compare latents only: with random weights, a reference changes few grey levels."""
    assert off(output, expected, SHAPE)[0] > 10 * RELATIVE


def test_reordered_references_break_parity(pairs: Any) -> None:
    pair, case = pairs("usual"), CASES["references alone"]
    swapped = pair.drawn(case, lambda row: {**row, "references": row["references"][::-1]})
    assert_far(swapped, pair.expected(case))


def test_uncut_reference_frames_break_parity(pairs: Any) -> None:
    """The latents are the same, but decoding starts one frame too early."""
    pair, case = pairs("usual"), CASES["references alone"]
    prepared = pair.atelier.prepare(
        {**REQUEST, **case.fields}, {path: png(image) for path, image in case.files.items()}
    )
    row = pair.programs.encode(pair.atelier.weights, dict(prepared.inputs))
    decode = jax.jit(pair.atelier.decode)
    expected = np.asarray(decode(pair.atelier.weights, row))
    early = {**row, "latents": jnp.roll(row["latents"], 1, axis=0)}
    assert expected.shape[0] == FRAMES
    assert psnr_db(np.asarray(decode(pair.atelier.weights, early)), expected) < PSNR_DB - 10
    small = np.asarray(jax.jit(pair.atelier.preview)(pair.atelier.weights, row))
    assert small.shape == (3, SIZE[1] // 8, SIZE[0] // 8, 3)


@pytest.mark.parametrize("scales", [[0.6], [1.3, 0.6]])
def test_other_scales_break_parity(pairs: Any, scales: list[float]) -> None:
    pair, case = pairs("usual"), CASES["mask and reference, each hint by its factor"]
    wrong = pair.drawn(case, conditioning_scale=scales)
    assert_far(wrong, pair.expected(case))


def test_unmasked_frames_break_parity(pairs: Any) -> None:
    pair, case = pairs("usual"), CASES["extension of a video"]
    masked = {path: file for path, file in case.files.items() if "mask" not in path}
    wrong = pair.drawn(case._replace(files=masked))
    assert_far(wrong, pair.expected(case))
