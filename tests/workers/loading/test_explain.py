"""Report of each array's placement, compared with the arrays of a real slice."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import pytest

from service.settings.models import ModelSettings
from service.settings.settings import Settings
from workers.loading import model
from workers.loading.explain import explain

MESH = {"fsdp": 2, "context": 2, "cfg": -1}


@pytest.fixture(scope="module")
def settings(flux_folder: Path) -> Settings:
    return Settings(
        models={"flux": ModelSettings(source=str(flux_folder), dtype="float32", exact_rows=2)},
        pools={"p": {"model": "flux", "mesh": MESH, "slots": 2}},
    )


@pytest.fixture(scope="module")
def text(settings: Settings) -> str:
    return explain(settings, "p")


def test_explanation_names_the_slice_and_reason(text: str) -> None:
    head = text.splitlines()[0]
    assert head.startswith("pool p: flux on 8 x cpu: fsdp 2 · cfg 2 · context 2")
    assert "2 slots, everything on the device (as in the settings)" in head


def test_parameters_are_placed_as_explained(settings: Settings, text: str) -> None:
    pool = settings.pools["p"]
    pipeline, _ = model.load("p", pool, settings.models["flux"], jax.devices())
    leaves = jax.tree.leaves_with_path(pipeline.weights.transformer)
    lines = text[text.index("transformer:") : text.index("\nclip:")].splitlines()[1:]
    assert len(lines) == len(leaves)
    for line, (_, leaf) in zip(lines, leaves, strict=True):
        parts = [int(size) for size in re.findall(r"(?:fsdp|ring|ulysses|tensor|cfg) (\d+)", line)]
        share = leaf.addressable_shards[0].data.size
        assert f"[{', '.join(map(str, leaf.shape))}]" in line
        assert leaf.size == share * (parts[0] if parts else 1), line


def test_activations_are_explained_with_their_split(text: str) -> None:
    section = text[text.index("activations of a step") :]
    assert "2 rows" in section.splitlines()[0]
    assert re.search(
        r"SingleBlock\.__call__  float32\[2, \d+, \d+\]  batch over cfg 2, tokens", section
    )
