"""Cost of presets on full-width networks: the program that measures it, on a narrow network."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from lab.bench.quality import wide
from lab.bench.quality.drawing import ImageGenerator
from lab.bench.quality.wide import LOOSE, WIDE, Wide, Words
from models.loading.sources import SHAPES
from workers.media.psnr import MAX_DB

STEPS = 4
WHOLE = {
    "wan": ("transformer", 1_418_996_800),
    "sdxl": ("unet", 2_567_463_684),
    "flux-whole": ("transformer", 11_901_408_320),
}
"""Number of parameters of the published network."""


@pytest.fixture(scope="module")
def narrow() -> Wide:
    """A narrow variant of Wan."""
    wide_ = WIDE["wan"]
    text = {**wide_.thin["text_encoder"], "d_model": 32, "d_kv": 8}
    sizes = {"num_layers": 2, "num_attention_heads": 2, "attention_head_dim": 12}
    return replace(
        wide_,
        thin={**wide_.thin, "text_encoder": text},
        fields={**wide_.fields, "width": 32, "height": 32},
        network={"transformer": {**sizes, "ffn_dim": 32, "text_dim": 32, "freq_dim": 16}},
    )


def test_what_is_left_out_shows(narrow: Wide) -> None:
    """A preset that skips nothing gives the exact image, the other a different image. Times, words
    and weights are not zeros, and the PSNR is not that of the noise."""
    names = ["first-block-cache", "first-block, 0.6"]
    costs = wide.costs(narrow, seeds=1, steps=STEPS, presets=names)
    assert list(costs) == ["exact", *names]
    exact_preset, loose = (costs[name] for name in names)
    assert (exact_preset.left_out, exact_preset.psnr_db) == (0, MAX_DB)
    assert loose.left_out > 0
    assert 5 < loose.worst_db <= loose.psnr_db < MAX_DB


def test_weights_in_files_draw_the_same_and_take_no_memory(
    narrow: Wide, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wide, "SMALL", 0)
    results = []
    for reader in (wide.RandomWords(), wide.Mapped(tmp_path)):
        pipeline = wide.opened(narrow, reader)
        (request,) = wide.requests(narrow, pipeline, seeds=1, steps=2)
        results.append(ImageGenerator(pipeline, wide.added)(request).result)
    assert np.array_equal(*results) and np.ptp(results[0]) > 0
    assert not list(tmp_path.iterdir()), (
        "files without a name are deleted when no process maps them"
    )
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
    # The model also has 8-bit copies of its kernels.
    size = sum(leaf.size for path, leaf in leaves if "['eight']" not in jax.tree_util.keystr(path))
    assert size == published
    other_parts = [state for part, state in pipeline.weights._asdict().items() if part != network]
    assert sum(leaf.size for leaf in jax.tree.leaves(other_parts)) < size / 50, "they are not thin"
    (request,) = wide.requests(WIDE[name], pipeline, seeds=1, steps=STEPS)
    for quality in pipeline.spec.qualities:
        assert len(pipeline.prepare({**request, "quality": quality}, {}).steps) == STEPS


def test_equal_presets_are_generated_once() -> None:
    presets = {**LOOSE, "again": LOOSE["teacache, 1.0"].model_copy(update={"about": "the same"})}
    assert wide.unlike(presets, [*LOOSE, "again"]) == list(LOOSE)
