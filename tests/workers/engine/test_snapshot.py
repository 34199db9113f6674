"""Snapshot files: only a snapshot that fits its request is used."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from models.spec.model_spec import Sizes
from models.spec.quality_presets import GuidanceInterval, Progressive, Quality
from tests.workers.toy import SPEC
from workers.engine.snapshot import (
    VERSION,
    Origin,
    RowSnapshot,
    UnfitSnapshot,
    check_fit,
    from_bytes,
    to_bytes,
    with_optimizations,
)
from workers.programs.batch_sizes import exact, fast

FIELDS = {"prompt": "a hat", "seed": 3, "num_inference_steps": 8}
ORIGIN = Origin.of("0123", FIELDS, exact())
KEPT = RowSnapshot(
    5,
    1.25,
    {
        "latents": np.arange(6, dtype=np.float32).reshape(2, 3),
        "half": np.arange(4).astype(ml_dtypes.bfloat16),
        "count": np.int32(7) * np.ones((), np.int32),
        "empty": np.zeros((3, 0), np.float32),
    },
    (1, 2, 2**32 - 1),
)


def test_round_trip() -> None:
    snapshot = from_bytes(to_bytes(KEPT, ORIGIN), ORIGIN)
    assert (snapshot.done, snapshot.device_seconds) == (5, 1.25)
    assert snapshot.digests == KEPT.digests
    assert snapshot.leaves.keys() == KEPT.leaves.keys()
    for name, leaf in KEPT.leaves.items():
        assert snapshot.leaves[name].dtype == leaf.dtype
        np.testing.assert_array_equal(snapshot.leaves[name], leaf)


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (Origin.of("4567", FIELDS, exact()), "fingerprint"),
        (Origin.of("0123", {**FIELDS, "seed": 4}, exact()), "request"),
        (Origin.of("0123", FIELDS, exact(2)), "batching is 'exact by 1', not 'exact by 2'"),
        (Origin.of("0123", FIELDS, fast(1)), "batching is 'exact by 1', not 'fast'"),
    ],
)
def test_snapshot_of_another_image_is_rejected(other: Origin, named: str) -> None:
    with pytest.raises(UnfitSnapshot, match=named):
        from_bytes(to_bytes(KEPT, ORIGIN), other)


def test_a_preset_that_does_something_else_by_now_is_another_request() -> None:
    """A preset's measurements are not part of its identity."""
    quality = Quality(guidance=GuidanceInterval(stop=0.7))
    other = Quality(guidance=GuidanceInterval(stop=0.3))
    first, same, later = (
        Origin.of("0123", with_optimizations(spec, {**FIELDS, "quality": "mine"}), exact())
        for spec in (
            SPEC.model_copy(update={"qualities": {"mine": preset}})
            for preset in (quality, quality.model_copy(update={"about": "measured"}), other)
        )
    )
    assert first == same != later


def test_newer_optimization_does_not_change_older_presets() -> None:
    """Images of these presets resume from snapshots of an earlier version."""
    plain = Quality(guidance=GuidanceInterval(stop=0.7))
    grows = plain.model_copy(update={"progressive": Progressive(scale=0.5, until=0.5)})
    spec = SPEC.model_copy(update={"qualities": {"plain": plain, "grows": grows}})
    assert {*with_optimizations(spec, {"quality": "plain"})["quality"]} == {
        *("guidance", "step_cache", "eight_bit")
    }
    assert with_optimizations(spec, {"quality": "grows"})["quality"]["progressive"] == {
        **{"scale": 0.5, "until": 0.5}
    }


def test_exact_preset_is_unchanged_in_snapshots() -> None:
    assert with_optimizations(SPEC, plain := {**FIELDS, "quality": "exact"}) == plain


def test_another_version_is_refused() -> None:
    data = to_bytes(KEPT, ORIGIN)[: -hashlib.sha256().digest_size]
    newer = data.replace(b'"version": %d' % VERSION, b'"version": %d' % (VERSION + 1))
    with pytest.raises(UnfitSnapshot, match="version"):
        from_bytes(newer + hashlib.sha256(newer).digest(), ORIGIN)


@pytest.mark.parametrize("size", [0, 10, 40, -1])
def test_half_a_file_is_refused(size: int) -> None:
    with pytest.raises(UnfitSnapshot):
        from_bytes(to_bytes(KEPT, ORIGIN)[:size], ORIGIN)


def test_a_damaged_file_is_refused() -> None:
    file = bytearray(to_bytes(KEPT, ORIGIN))
    file[-50] ^= 1
    with pytest.raises(UnfitSnapshot, match="damaged"):
        from_bytes(bytes(file), ORIGIN)


def test_only_fitting_snapshots_are_resumed() -> None:
    row = {**KEPT.leaves, "prompt_embeds": np.zeros(9)}
    names = frozenset(KEPT.leaves)
    check_fit(KEPT, row, names, steps=8)
    check_fit(KEPT, row, names, steps=5)
    wrong = {
        "more steps than there are": (KEPT, row, names, 4),
        "no step": (replace(KEPT, done=0), row, names, 8),
        "another shape": (KEPT, {**row, "latents": np.zeros((3, 2), np.float32)}, names, 8),
        "another type": (KEPT, {**row, "latents": np.zeros((2, 3))}, names, 8),
        "too little": (KEPT, row, names | {"prompt_embeds"}, 8),
        "too much": (KEPT, row, names - {"half"}, 8),
    }
    for why, arguments in wrong.items():
        with pytest.raises(UnfitSnapshot):
            check_fit(*arguments)
            pytest.fail(why)


def test_token_bucket_steps_change_the_snapshot_origin() -> None:
    """One image must not mix steps with padded tokens and steps of its exact size."""
    sizes = Sizes(token_buckets=0.06)
    shared = with_optimizations(SPEC.model_copy(update={"sizes": sizes}), FIELDS)
    assert Origin.of("0123", shared, exact()) != Origin.of("0123", FIELDS, exact())
