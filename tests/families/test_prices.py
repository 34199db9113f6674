"""The queue's price of a request knows the tokens that its images add to every step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from models.interface.denoising_pipeline import DenoisingPipeline
from models.loading.sources import SHAPES
from service.jobs.scheduling.cost_model import volume_of
from tests.families.suite import EVERY, loaded

CLOSE = 0.02
"""Relative: an image is read at one of several sizes, which have about as many pixels."""


def keys_of(images: Mapping[str, bytes]) -> dict[str, Any]:
    """Return a job's fields that are images, or lists of them; others have more beside each."""
    found: dict[str, Any] = {}
    for path in images:
        name, _, place = path.partition(".")
        if place.isdecimal():
            found.setdefault(name, []).append("a key")
        elif not place:
            found[name] = "a key"
    return found


COUNTED = [name for name, one in EVERY.items() if one.images and one.step_caches]
"""Entries with images whose drafts count tokens, as step caches need them."""


@pytest.mark.parametrize("name", COUNTED)
def test_a_buckets_volume_is_in_proportion_to_tokens(name: str, tmp_path: Path) -> None:
    """At two sizes with the same images: what they add does not grow with what is drawn."""
    entry = EVERY[name]
    pipeline = loaded(name, entry.least(tmp_path), "float32", reader=SHAPES)
    assert isinstance(pipeline, DenoisingPipeline)
    pixels_of_a_token = []
    for times in (1, 4):
        fields = {**pipeline.spec.defaults, **entry.least_request}
        fields["width"] *= times
        images = entry.largest_images or entry.images
        tokens = pipeline.lay_out(fields, images).tokens
        volume = volume_of(pipeline.spec.bucket(fields | keys_of(entry.images)))
        assert volume and tokens
        pixels_of_a_token.append(volume / tokens)
    assert pixels_of_a_token[0] == pytest.approx(pixels_of_a_token[1], rel=CLOSE)
