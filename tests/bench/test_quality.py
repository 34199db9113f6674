"""What presets cost on networks of full width: the program that measures it, on a narrow one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from models.loading.sources import SHAPES
from tests.bench.quality import wide
from tests.bench.quality.drawing import Drawer
from tests.bench.quality.wide import LOOSE, WIDE, Wide, Words
from workers.media.psnr import MOST_DB

STEPS = 4
WHOLE = {
    "wan": ("transformer", 1_418_996_800),
    "sdxl": ("unet", 2_567_463_684),
    "flux-whole": ("transformer", 11_901_408_320),
}
"""Parameters of the published checkpoint's network."""


@pytest.fixture(scope="module")
def narrow() -> Wide:
    """Wan's smallest relative."""
    one = WIDE["wan"]
    text = {**one.thin["text_encoder"], "d_model": 32, "d_kv": 8}
    sizes = {"num_layers": 2, "num_attention_heads": 2, "attention_head_dim": 12}
    return replace(
        one,
        thin={**one.thin, "text_encoder": text},
        fields={**one.fields, "width": 32, "height": 32},
        network={"transformer": {**sizes, "ffn_dim": 32, "text_dim": 32, "freq_dim": 16}},
    )


def test_what_is_left_out_shows(narrow: Wide) -> None:
    """A preset that leaves nothing out draws the exact image, the other one another: time, words
    and weights are no zeros, and likeness is not that of the noise."""
    names = ["first-block-cache", "first-block, 0.6"]
    found = wide.costs(narrow, seeds=1, steps=STEPS, presets=names)
    assert list(found) == ["exact", *names]
    whole, loose = (found[name] for name in names)
    assert (whole.left_out, whole.psnr_db) == (0, MOST_DB)
    assert loose.left_out > 0
    assert 5 < loose.worst_db <= loose.psnr_db < MOST_DB


def test_weights_in_files_draw_the_same_and_take_no_memory(
    narrow: Wide, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wide, "SMALL", 0)
    found = []
    for reader in (wide.RandomWords(), wide.Mapped(tmp_path)):
        pipeline = wide.opened(narrow, reader)
        (request,) = wide.requests(narrow, pipeline, seeds=1, steps=2)
        found.append(Drawer(pipeline, wide.added)(request).result)
    assert np.array_equal(*found) and np.ptp(found[0]) > 0
    assert not list(tmp_path.iterdir()), "files without a name go when nobody maps them"
    mapped = Path("/proc/self/smaps").read_text()
    leaves = jax.tree.leaves(pipeline.weights.transformer)
    assert all(f"{leaf.unsafe_buffer_pointer():x}-" in mapped for leaf in leaves)


def test_prompts_differ_in_their_words() -> None:
    first, again, other = (Words().encode([text], 8) for text in ("a", "a", "b"))
    assert np.array_equal(first, again) and not np.array_equal(first, other)


@pytest.mark.parametrize("name", WHOLE)
def test_whole_networks_are_as_published(name: str) -> None:
    network, published = WHOLE[name]
    pipeline = wide.opened(WIDE[name], SHAPES)
    leaves = jax.tree.leaves_with_path(getattr(pipeline.weights, network))
    # Beside its kernels it has them in 8 bits.
    size = sum(leaf.size for path, leaf in leaves if "['eight']" not in jax.tree_util.keystr(path))
    assert size == published
    others = [state for part, state in pipeline.weights._asdict().items() if part != network]
    assert sum(leaf.size for leaf in jax.tree.leaves(others)) < size / 50, "they are not thin"
    (request,) = wide.requests(WIDE[name], pipeline, seeds=1, steps=STEPS)
    for quality in pipeline.spec.qualities:
        assert len(pipeline.prepare({**request, "quality": quality}, {}).steps) == STEPS


def test_equal_presets_are_drawn_once() -> None:
    presets = {**LOOSE, "again": LOOSE["teacache, 1.0"].model_copy(update={"about": "the same"})}
    assert wide.unlike(presets, [*LOOSE, "again"]) == list(LOOSE)
