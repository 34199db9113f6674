"""Published checkpoints by their short names: sizes of the full-size networks, from shapes
alone."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import jax
import pytest

from models import published, registry
from models.interface.pipeline import Pipeline
from models.loading.sources import SHAPES
from tests.families.suite import EVERY
from workers.plan.model import neighboring_networks

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "models.md"
NAMES = {name: title for entry in EVERY.values() for name, title in entry.published.items()}
"""Names that the authors gave the checkpoints, by short name."""


@cache
def stated() -> dict[str, tuple[float, float]]:
    """Return billions of parameters and GiB by name, from docs/guides/models.md."""
    rows = re.findall(r"^\| ([\w. -]+) \| ([\d.]+) B \| ([\d.]+) GiB \|", PAGE.read_text(), re.M)
    return {name: (float(billions), float(size)) for name, billions, size in rows}


def shapes(name: str, folder: Path) -> Pipeline:
    published.write(name, folder)
    nets = neighboring_networks(name, folder)
    return registry.load(name, str(folder), "bfloat16", {}, reader=SHAPES, **nets)


def test_the_readme_states_the_size_of_every_checkpoint() -> None:
    assert NAMES.keys() == published.CHECKPOINTS.keys()
    assert stated().keys() == set(NAMES.values())


@pytest.mark.parametrize("name", NAMES)
def test_a_full_size_checkpoint_takes_what_the_readme_states(name: str, tmp_path: Path) -> None:
    weights = shapes(name, tmp_path).weights._asdict()
    del weights["preview"]  # ours, fitted to any autoencoder
    leaves = jax.tree.leaves(weights)
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)
    count = sum(leaf.size for leaf in leaves)
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    assert (round(count / 1e9, 1), round(size / 2**30, 1)) == stated()[NAMES[name]]


def test_a_request_is_prepared_without_a_vocabulary(tmp_path: Path) -> None:
    pipeline = shapes("flux-schnell", tmp_path)
    fields = {**pipeline.spec.defaults, "prompt": "words", "seed": 0, "width": 64, "height": 32}
    prepared = pipeline.prepare(fields, {})
    assert prepared.inputs["t5_ids"].shape == (1, pipeline.spec.limits.max_sequence_length)
    assert prepared.inputs["noise"].shape == (4, 8, 16)
    assert len(prepared.steps) == 4  # distilled, by the published scheduler's config
