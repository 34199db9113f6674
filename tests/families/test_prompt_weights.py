"""Weighted prompts under every layout, and in buckets with plain prompts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.interface.pipeline import Pipeline, PreparedRow, PyTree
from tests.families.suite import EVERY, loaded
from tests.families.test_generation import LATENTS, LAYOUTS
from tests.parallel.layouts import denoise, layout

WEIGHTED: Mapping[str, Any] = {
    "prompt_syntax": "weighted",
    "prompt": "a (red:1.4) [circle]",
    "negative_prompt": "(a blue:0.6) square",
}
CHUNKS: Mapping[str, Any] = {**WEIGHTED, "prompt": "a (red:1.4) circle BREAK [star] BREAK (blue)"}
EMBEDDINGS = {"prompt_embeds", "captions"}
"""Leaves with the features of prompts, one in each family."""
SPLIT = ("cfg 2", "ulysses 4", "tensor 2", "fsdp 2, cfg 2, tensor 2")
"""Layouts that split the longer encoding of chunks, each in its own way."""


@pytest.fixture(scope="module", params=[name for name in EVERY if EVERY[name].weighted_prompts])
def family(request: pytest.FixtureRequest) -> str:
    """Return every family whose prompts have weights."""
    return str(request.param)


@pytest.fixture(scope="module")
def pipeline(family: str, folder: Path) -> Pipeline:
    return loaded(family, folder, "float32")


def prepared(pipeline: Pipeline, changes: Mapping[str, Any]) -> PreparedRow:
    entry = EVERY[pipeline.spec.name]
    return pipeline.prepare({**pipeline.spec.defaults, **entry.request, **changes}, entry.images)


def encoded(pipeline: Pipeline, request: PreparedRow, **sizes: Any) -> PyTree:
    """Return the row before its first step."""
    return next(denoise(pipeline, request, layout(**sizes)))


@pytest.fixture(scope="module")
def by_one_device(pipeline: Pipeline) -> PyTree:
    return encoded(pipeline, prepared(pipeline, WEIGHTED))


@pytest.mark.parametrize("name", LAYOUTS)
def test_layout_encodes_like_one_device(
    name: str, pipeline: Pipeline, by_one_device: PyTree
) -> None:
    actual = encoded(pipeline, prepared(pipeline, WEIGHTED), **LAYOUTS[name])
    for leaf in {*EMBEDDINGS, "pooled_embeds"} & by_one_device.keys():
        expected = np.asarray(by_one_device[leaf])
        assert gap(actual[leaf], expected) < LATENTS


def test_weights_change_the_encoding(pipeline: Pipeline, by_one_device: PyTree) -> None:
    """The tolerance distinguishes a weighted prompt from a plain one with the same words."""
    words = {"prompt": "a red circle", "negative_prompt": "a blue square"}
    plain = encoded(pipeline, prepared(pipeline, {**WEIGHTED, **words}))
    (leaf,) = EMBEDDINGS & plain.keys()
    for actual, expected in zip(plain[leaf], by_one_device[leaf], strict=True):
        assert gap(actual, np.asarray(expected)) > 100 * LATENTS


@pytest.mark.parametrize("family", ["sdxl"], indirect=True)
def test_chunks_on_a_layout_match_one_device(pipeline: Pipeline) -> None:
    request = prepared(pipeline, CHUNKS)
    assert request.inputs["ids"].shape[1] == 3
    expected = latents(pipeline, request)
    for name in SPLIT:
        for actual, reference in zip(
            latents(pipeline, request, **LAYOUTS[name]), expected, strict=True
        ):
            assert gap(actual, reference) < LATENTS, name


def latents(pipeline: Pipeline, request: PreparedRow, **sizes: Any) -> list[np.ndarray]:
    *rows, _ = denoise(pipeline, request, layout(**sizes))
    return [np.asarray(row["latents"]) for row in rows]


def gap(actual: Any, expected: np.ndarray) -> float:
    return float(np.abs(np.asarray(actual) - expected).max() / np.abs(expected).max())
