"""Published checkpoints by short names: what is planned is what is published."""

from __future__ import annotations

from pathlib import Path

import jax
import pytest

from models import catalog, known
from models.pipeline import Pipeline
from models.published import gibibytes
from models.reading import SHAPES

NAMES = {
    "flux-schnell": "FLUX.1 schnell",
    "wan2.1-i2v-14b": "Wan 2.1 I2V 14B",
    "wan2.2-a14b": "Wan 2.2 T2V A14B",
    "wan2.2-5b": "Wan 2.2 TI2V 5B",
}


def shapes(name: str, folder: Path) -> Pipeline:
    known.write(name, folder)
    return catalog.load(name, str(folder), "bfloat16", {}, reader=SHAPES)


@pytest.mark.parametrize("name", NAMES)
def test_shapes_have_the_published_size(name: str, tmp_path: Path) -> None:
    weights = shapes(name, tmp_path).weights._asdict()
    del weights["preview"]  # ours, fitted to any autoencoder
    leaves = jax.tree.leaves(weights)
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    assert size / 2**30 == gibibytes(NAMES[name], "bfloat16")


def test_a_request_is_prepared_without_a_vocabulary(tmp_path: Path) -> None:
    pipeline = shapes("flux-schnell", tmp_path)
    fields = {**pipeline.spec.defaults, "prompt": "words", "seed": 0, "width": 64, "height": 32}
    prepared = pipeline.prepare(fields, {})
    assert prepared.inputs["t5_ids"].shape == (1, pipeline.spec.limits.max_sequence_length)
    assert prepared.inputs["noise"].shape == (4, 8, 16)
    assert len(prepared.steps) == 4  # distilled: what the published scheduler's config makes of it
