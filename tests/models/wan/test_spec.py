from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from models.wan.checkpoint import WanCheckpoint
from models.wan.config import WanConfig
from models.wan.latents import Grid
from models.wan.published import T2V_14B
from models.wan.spec import fields_of, limits_of, make_spec
from tests.models.wan.test_checkpoint import CONFIG, EMBEDDED, FROM_IMAGE, picture, text


def spec(folder: Path, checkpoint: WanCheckpoint, **defaults: Any) -> Any:
    return make_spec("wan", (folder,), checkpoint, defaults)


def test_defaults_are_those_of_diffusers_call(tmp_path: Path) -> None:
    wan_spec = spec(tmp_path, text())
    sizes = [wan_spec.defaults[name] for name in ("width", "height", "num_frames", "fps")]
    assert sizes == [832, 480, 81, 16]
    assert wan_spec.defaults["num_inference_steps"] == 50
    assert wan_spec.defaults["guidance_scale"] == 5.0
    assert wan_spec.defaults["max_sequence_length"] == 512
    assert spec(tmp_path, text(expand_timesteps=True)).defaults["fps"] == 24


def test_bucket_contains_the_shapes_chosen_by_a_request(tmp_path: Path) -> None:
    wan_spec = spec(tmp_path, text())
    sizes = {"width": 96, "height": 96, "num_frames": 5, "max_sequence_length": 64}
    changes = [{}, *({name: size // 2} for name, size in sizes.items())]
    assert len({wan_spec.bucket(sizes | change) for change in changes}) == len(changes)


def test_folder_and_operator_override_defaults(tmp_path: Path) -> None:
    shipped = {"defaults": {"num_frames": 17, "width": 64}}
    (tmp_path / "atelier.json").write_text(json.dumps(shipped))
    wan_spec = spec(tmp_path, text(), width=96)
    assert (wan_spec.defaults["num_frames"], wan_spec.defaults["width"]) == (17, 96)
    with pytest.raises(ValueError, match=r"\['guidance_scale_2'\]"):
        spec(tmp_path, text(), guidance_scale_2=3.0)


def test_limits_of_a_published_network() -> None:
    config = WanConfig.from_dict(T2V_14B)
    limits = limits_of(Grid(4, 8, config.patch_size, config.rope_max_seq_len))
    assert (limits.size_multiple_px, limits.frames_multiple) == (16, 4)
    assert limits.max_side_px >= 1280
    assert limits.max_pixels >= 1280 * 720
    assert limits.max_frames >= 121
    assert limits.max_frames % 4 == 1


def test_a_short_rope_limits_sizes_and_defaults(tmp_path: Path) -> None:
    short = type(CONFIG)(**(vars(CONFIG) | {"rope_max_seq_len": 6}))
    wan_spec = spec(tmp_path, text(transformers={"transformer": short}))
    assert (wan_spec.limits.max_side_px, wan_spec.limits.max_frames) == (96, 21)
    assert (wan_spec.defaults["width"], wan_spec.defaults["num_frames"]) == (96, 21)


def test_sides_of_unlike_patches_have_a_common_multiple() -> None:
    limits = limits_of(Grid(4, 8, (1, 2, 3), 32))
    assert limits.size_multiple_px == 48
    assert limits.max_side_px == 480


@pytest.mark.parametrize("patch", [1, 2, 3])
def test_frame_counts_divide_into_whole_tokens(patch: int) -> None:
    grid = Grid(4, 8, (patch, 2, 2), 32)
    limits = limits_of(grid)
    counts = range(limits.min_frames, limits.max_frames + 1, limits.frames_multiple)
    assert list(counts) == [
        count for count in range(1, limits.max_frames + 1) if grid.frames_near(count)[0] == count
    ]
    assert limits.max_frames == counts[-1]


def test_last_image_is_required_by_two_image_networks(tmp_path: Path) -> None:
    paired = picture(replace(EMBEDDED, pos_embed_seq_len=20))
    assert spec(tmp_path, paired).needed == {"last_image"}
    assert not spec(tmp_path, picture()).needed


def test_fields_are_those_that_the_checkpoint_can_serve() -> None:
    extra = {"guidance_scale_2", "image", "last_image"}
    assert not fields_of(text()) & extra
    assert fields_of(text(boundary_ratio=0.5)) & extra == {"guidance_scale_2"}
    assert fields_of(picture()) & extra == {"image"}
    assert fields_of(picture(FROM_IMAGE, image_encoder=None)) & extra == {"image", "last_image"}
    assert fields_of(text(expand_timesteps=True)) & extra == {"image"}


def test_wan_spec_lists_flow_schedulers(tmp_path: Path) -> None:
    names = set(spec(tmp_path, text()).schedulers)
    assert {"unipc", "dpmpp_2m", "flow_match_euler"} <= names
    assert "ddim" not in names
