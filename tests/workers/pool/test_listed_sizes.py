"""Sizes that a model serves."""

from __future__ import annotations

from typing import Any

import pytest

from models.spec.model_spec import Size, Sizes
from models.spec.quality_presets import Progressive, Quality
from service.settings.models import ModelSettings
from service.settings.section import ConfigError
from tests.service.standin import SPEC, VIDEO
from workers.pool import listed_sizes


def of(spec: Any, **settings: Any) -> Sizes:
    return listed_sizes.of_settings(ModelSettings(source="x", **settings), spec)


def test_any_size_unless_the_settings_list_some() -> None:
    assert of(SPEC) == Sizes()
    listed = of(VIDEO, sizes=[{"width": 64, "height": 32, "num_frames": 5}])
    size = Size(width=64, height=32, num_frames=5, max_sequence_length=64)
    assert listed == Sizes(mode="listed", listed=(size,))


def test_sizes_that_share_steps_are_in_the_spec() -> None:
    sharing = SPEC.model_copy(update={"sizes": Sizes(token_buckets=0.06)})
    assert of(sharing) == Sizes(token_buckets=0.06)
    assert of(sharing, sizes="listed").token_buckets == 0.06


def test_listed_sizes_are_compiled_first() -> None:
    warmup = [{}, {"width": 64}, {"num_inference_steps": 9}]
    assert list(map(str, of(SPEC, sizes="listed", warmup=warmup).listed)) == ["96 x 64", "64 x 64"]
    assert list(map(str, of(VIDEO, sizes="listed").listed)) == ["96 x 64 x 5 frames"]


def test_second_pass_of_a_warm_up_size_is_listed() -> None:
    warmup = [{"width": 64, "height": 48, "hires": {"scale": 2}}]
    listed = map(str, of(SPEC, sizes="listed", warmup=warmup).listed)
    assert list(listed) == ["64 x 48", "128 x 96"]


def test_smaller_size_of_a_warm_up_size_is_listed() -> None:
    grows = Quality(progressive=Progressive(scale=0.5, until=0.5))
    spec = SPEC.model_copy(update={"qualities": {"grows": grows}})
    warmup = [{"width": 128, "height": 96, "quality": "grows"}]
    listed = map(str, of(spec, sizes="listed", warmup=warmup).listed)
    assert list(listed) == ["64 x 48", "128 x 96"]


@pytest.mark.parametrize(
    ("hires", "message"), [(True, "hires: must be an object"), ({"scale": "2"}, r"hires\.scale: ")]
)
def test_a_mistyped_hires_fix_is_named(hires: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"models\..*\.warmup\.{message}"):
        of(SPEC, sizes="listed", warmup=[{"hires": hires}])
    spec = SPEC.model_copy(update={"defaults": {**SPEC.defaults, "hires": hires}})
    with pytest.raises(ConfigError, match=rf"models\..*\.defaults\.{message}"):
        of(spec, sizes="listed")


def test_a_listed_size_has_the_default_length_of_text_unless_it_names_one() -> None:
    sides = {"width": 64, "height": 64}
    listed = of(SPEC, sizes=[sides, {**sides, "max_sequence_length": 32}]).listed
    assert [size.max_sequence_length for size in listed] == [64, 32]
    assert of(SPEC, sizes="listed").listed[0].max_sequence_length == 64


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ({"width": 40, "height": 64}, "no multiple of 16"),
        ({"width": 512, "height": 64}, "no multiple of 16 from 32 to 256"),
        ({"width": 256, "height": 256}, "more than 16384 pixels"),
        ({"width": 64, "height": 64, "num_frames": 4}, "num_frames must be 1 more than"),
        ({"width": 64, "height": 64, "max_sequence_length": 999}, "must be 128 at most"),
    ],
)
def test_unsupported_size_is_named(size: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=f"sizes: .*{message}"):
        of(VIDEO, sizes=[size])
