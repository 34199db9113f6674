"""Wan Animate's pipeline compared with diffusers', for one segment.

Bounds as in `tests.parity.test_wan`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import jax.numpy as jnp
import pytest
from diffusers import WanAnimatePipeline
from PIL import Image

from models.spec.request import RequestError
from models.wan.animate_inputs import back_and_forth
from models.wan.animate_pipeline import AnimatePipeline
from tests.parity.distances import png
from tests.parity.test_wan import BASE as REQUEST
from tests.parity.test_wan import PROMPTED, RELATIVE, Result
from tests.parity.test_wan_vace_conditions import picture
from tests.parity.test_wan_vace_pipeline import listed
from tests.parity.tiny import Config
from tests.parity.wan_pairs import WanPair, assert_the_same_clip, off

SIZE, FRAMES = (80, 48), 9
SHAPE = (FRAMES, *SIZE[::-1], 3)
CHECKPOINTS: dict[str, Config] = {
    "usual": {"animate": {}},
    "odd": {
        "animate": {
            "motion_encoder_channel_sizes": {"4": 3, "8": 9},
            "motion_encoder_size": 8,
            "motion_dim": 3,
            "face_encoder_num_heads": 3,
            "face_encoder_hidden_dim": 11,
            "inject_face_latents_blocks": 1,
        },
        "transformer": {
            "patch_size": (1, 1, 2),
            "num_attention_heads": 5,
            "attention_head_dim": 14,
            "num_layers": 2,
            "eps": 1e-3,
            "cross_attn_norm": False,
            "added_kv_proj_dim": None,
        },
        "vision": {"hidden_size": 22, "image_size": 24, "patch_size": 7},
        "scheduler": {"kind": "FlowMatchEulerDiscreteScheduler", "shift": 5.0},
        "vae": {
            "z_dim": 3,
            "dim_mult": [1, 2, 3],
            "temperal_downsample": [True, True],
            "scale_factor_spatial": 4,
        },
        "t5": {"num_heads": 3, "d_kv": 11, "d_model": 24},
    },
}

CHARACTER = picture(50, (61, 90))
POSES = [picture(seed, (93, 61)) for seed in range(60, 60 + FRAMES)]
FACES = [picture(seed, (31, 31)) for seed in range(70, 70 + FRAMES)]
BACKGROUND = [picture(seed, (70, 50)) for seed in range(80, 80 + FRAMES)]
MASKS = [picture(seed, (51, 90), "L") for seed in range(90, 90 + FRAMES)]


class Case(NamedTuple):
    """Fields, frames of a request's videos, and diffusers' arguments if they differ."""

    fields: dict[str, Any]
    videos: dict[str, list[Image.Image]]
    diffusers: dict[str, Any]


BOTH = {"pose_video": POSES, "face_video": FACES}
CASES = {
    "animated, not guided": Case({"guidance_scale": 1.0}, BOTH, {}),
    "animated, guided": Case(PROMPTED, BOTH, {}),
    "short videos, which run back and forth": Case(
        {"guidance_scale": 1.0},
        {"pose_video": POSES[:4], "face_video": FACES[:2]},
        {
            "pose_video": [POSES[place] for place in (0, 1, 2, 3, 2, 1, 0, 1, 2)],
            "face_video": [FACES[place % 2] for place in range(FRAMES)],
        },
    ),
    "replaced, guided": Case(
        PROMPTED, {**BOTH, "background_video": BACKGROUND, "mask_video": MASKS}, {"mode": "replace"}
    ),
    "replaced, one mask": Case(
        {"guidance_scale": 1.0},
        {**BOTH, "background_video": BACKGROUND, "mask_video": MASKS[:1]},
        {"mode": "replace", "mask_video": MASKS[:1] * FRAMES},
    ),
}


@pytest.fixture(scope="module", autouse=True)
def compiled_coarsely() -> None:
    """Override the folder's fixture: compile options depend on the request."""


def files_of(case: Case) -> Mapping[str, bytes]:
    files = {"image": CHARACTER}
    for name, frames in case.videos.items():
        files |= listed(name, frames)
    return {path: png(image) for path, image in files.items()}


class Pair(WanPair):
    """One checkpoint, loaded by Atelier and by diffusers."""

    def drawn(self, case: Case, spoil: Callable[[Any], Any] = lambda row: row) -> Result:
        """Run a case; `spoil` corrupts the row after encoding."""
        return self.drawn_by_atelier(case.fields, files_of(case), spoil)

    def expected(self, case: Case) -> Result:
        arguments = {**REQUEST, **case.fields, "image": CHARACTER, **case.videos, **case.diffusers}
        arguments["segment_frame_length"] = arguments.pop("num_frames")
        return self.drawn_by_diffusers(arguments)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("animate")
    return cache(
        lambda name: Pair(root / name, CHECKPOINTS[name], AnimatePipeline, WanAnimatePipeline)
    )


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_video_matches_diffusers(pairs: Any, name: str, case: str) -> None:
    pair, chosen = pairs(name), CASES[case]
    assert_the_same_clip(pair.drawn(chosen), pair.expected(chosen), SHAPE)


@pytest.mark.parametrize("leaf", ["pose", "face_embeds", "image_embeds", "condition"])
def test_rolled_channels_break_parity(pairs: Any, leaf: str) -> None:
    pair, case = pairs("usual"), CASES["replaced, guided"]
    wrong = pair.drawn(case, lambda row: {**row, leaf: jnp.roll(row[leaf], 1, axis=-1)})
    assert off(wrong, pair.expected(case), SHAPE)[0] > 10 * RELATIVE


def test_inconsistent_rows_are_rejected_with_a_reason(pairs: Any) -> None:
    pair, case = pairs("usual"), CASES["replaced, guided"]
    for name, says in (
        ("image", "image"),
        ("pose_video", "pose_video"),
        ("face_video", "face_video"),
        ("mask_video", "together with its mask"),
        ("background_video", "together with its mask"),
    ):
        files = {path: of for path, of in files_of(case).items() if path.split(".")[0] != name}
        with pytest.raises(RequestError, match=says):
            pair.atelier.prepare({**REQUEST, **case.fields}, files)
    with pytest.raises(RequestError, match="at least 9"):
        pair.atelier.prepare({**REQUEST, "num_frames": 5}, files_of(case))


def test_back_and_forth() -> None:
    assert back_and_forth(3, 8) == [0, 1, 2, 1, 0, 1, 2, 1]
    assert back_and_forth(1, 3) == [0, 0, 0]
