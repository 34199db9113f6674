"""Reduction of changes to the ranks of a bank: as close as possible, and with a true error."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from models.adapters.files.adapter import (
    Composed,
    Factor,
    Hadamard,
    KernelShape,
    Kronecker,
    LayerChange,
    LowRank,
    StoredArray,
)
from models.adapters.files.formats import inspect
from models.adapters.files.reduction import DIRECT, low_rank
from models.spec.lora import PAGE_RANK
from tests.models.adapters.published_names import published, write
from tests.models.adapters.test_kinds import FLAT, IN, NAMES, OUT, delta, numbers

ROUNDING = 2e-4
"""Relative tolerance of float32 decompositions."""
NEARLY = 1.02
"""Error of the decomposition of a large matrix, as a multiple of the least possible."""


def stored(*shape: int, seed: int = 0) -> StoredArray:
    return StoredArray(numbers(*shape, seed=seed))


def composed(product: Factor | Kronecker | Hadamard, shape: KernelShape) -> Composed:
    return Composed(product, slice(0, shape.out_features), shape, 10_000, scale=0.5)


def falling(rows: int, columns: int) -> np.ndarray:
    """Return a matrix whose singular values fall, as those of trained changes do."""
    left, _ = np.linalg.qr(numbers(rows, 32))
    right, _ = np.linalg.qr(numbers(columns, 32, seed=1))
    return (left * 0.8 ** np.arange(32, dtype=np.float32)) @ right.T


WINDOW = KernelShape(15, 32, (3, 3))
CHANGES: dict[str, LayerChange] = {
    "LoRA": LowRank(stored(24, 30), stored(32, 24, seed=1), 0.5),
    "LoRA of a convolution": LowRank(stored(24, 15, 3, 3), stored(32, 24, seed=1), 0.5),
    "LoKr": composed(
        Kronecker(Factor((stored(4, 6),)), Factor((stored(8, 5),))), KernelShape(30, 32)
    ),
    "LoKr of a convolution": composed(
        Kronecker(Factor((stored(4, 2), stored(2, 3))), Factor((stored(8, 5, 3, 3),))), WINDOW
    ),
    "LoKr, Tucker": composed(
        Kronecker(
            Factor((stored(4, 3),)), Factor((stored(6, 7, 3, 3), stored(6, 8), stored(7, 5)))
        ),
        WINDOW,
    ),
    "LoHa": composed(
        Hadamard(
            Factor((stored(32, 4), stored(4, 30))),
            Factor((stored(32, 4, seed=1), stored(4, 30, seed=1))),
        ),
        KernelShape(30, 32),
    ),
    "LoHa, Tucker": composed(
        Hadamard(
            *(
                Factor(
                    (
                        stored(5, 6, 3, 3, seed=seed),
                        stored(5, 32, seed=seed),
                        stored(6, 15, seed=seed),
                    )
                )
                for seed in (0, 1)
            )
        ),
        WINDOW,
    ),
    "a whole matrix": composed(Factor((stored(32, 30),)), KernelShape(30, 32)),
}


@pytest.mark.parametrize("rank", [5, 12, 40])
@pytest.mark.parametrize("kind", CHANGES)
def test_the_closest_change_is_taken_and_its_error_is_true(kind: str, rank: int) -> None:
    change = CHANGES[kind]
    exact = delta(change)
    kept, loss = low_rank(change, rank)
    values = np.linalg.svd(exact, compute_uv=False)
    least = np.linalg.norm(values[rank:]) / np.linalg.norm(values)
    error = np.linalg.norm(delta(kept) - exact) / np.linalg.norm(exact)
    assert kept.rank <= rank and kept.scale == 0.5
    assert error == pytest.approx(least, abs=ROUNDING)
    assert rank == 40 or loss.error == pytest.approx(error, abs=2 * ROUNDING)
    again, _ = low_rank(change, rank)
    assert again.up.array.tobytes() == kept.up.array.tobytes()
    assert again.down.array.tobytes() == kept.down.array.tobytes()


def test_low_rank_change_is_unchanged() -> None:
    change = CHANGES["LoRA"]
    assert low_rank(change, 24)[0] is change


def test_a_whole_matrix_of_few_inputs_is_exact() -> None:
    matrix = numbers(32, 7)
    kept, _ = low_rank(composed(Factor((StoredArray(matrix),)), KernelShape(7, 32)), 16)
    np.testing.assert_array_equal(delta(kept), 0.5 * matrix)
    assert kept.rank == 7


@pytest.mark.parametrize("kind", ["whole", "LoHa", "LoRA"])
def test_decomposition_of_large_matrices_is_nearly_optimal(kind: str) -> None:
    side = DIRECT + 60
    matrix = falling(side, side + 5)
    if kind == "whole":
        change: LayerChange = composed(Factor((StoredArray(matrix),)), KernelShape(side + 5, side))
    elif kind == "LoRA":
        change = LowRank(StoredArray(matrix), StoredArray(np.eye(side, dtype=np.float32)))
    else:
        left, values, right = np.linalg.svd(falling(side, side + 5), full_matrices=False)
        first = Factor((StoredArray(left[:, :30] * values[:30]), StoredArray(right[:30])))
        change = composed(
            Hadamard(first, Factor((stored(side, 2), stored(2, side + 5)))),
            KernelShape(side + 5, side),
        )
    exact = delta(change)
    kept, loss = low_rank(change, 8)
    values = np.linalg.svd(exact, compute_uv=False)
    least = np.linalg.norm(values[8:]) / np.linalg.norm(values)
    error = np.linalg.norm(delta(kept) - exact) / np.linalg.norm(exact)
    assert least <= error * 1.0001 <= least * NEARLY
    assert loss.error == pytest.approx(error, rel=1e-3)


def test_a_file_of_a_high_rank_is_reduced_with_a_stated_error(tmp_path: Path) -> None:
    rank, width = 24, 3072
    arrays = {}
    for layer in range(2):
        name = f"transformer.transformer_blocks.{layer}.attn.to_q"
        arrays[f"{name}.lora_A.weight"] = numbers(rank, width)
        arrays[f"{name}.lora_B.weight"] = numbers(width, rank) * 0.5 ** np.arange(rank)
    arrays = {key: array.astype(np.float32) for key, array in arrays.items()}
    file = write(tmp_path / "a.safetensors", arrays)
    summary = inspect(file, published("flux"), max_rank=PAGE_RANK)
    assert (summary.rank, summary.is_reduced) == (PAGE_RANK, True)
    (warning,) = summary.warnings
    stated = re.fullmatch(
        r"its rank of 24 is reduced to 16, with an error of (\S+)% of its changes \(measured in 2 "
        r"of 2 layers\); fused into the weights \(fuse = true\), it is exact",
        warning,
    )
    assert stated is not None and float(stated[1]) == pytest.approx(0, abs=0.05)
    whole = inspect(file, published("flux"), max_rank=2 * PAGE_RANK)
    assert (whole.rank, whole.is_reduced, whole.warnings) == (24, False, ())


def test_magnitudes_take_a_page_of_the_rank(tmp_path: Path) -> None:
    arrays = {
        f"{FLAT}.lora_down.weight": numbers(20, IN),
        f"{FLAT}.lora_up.weight": numbers(OUT, 20),
        f"{FLAT}.dora_scale": numbers(OUT, 1),
    }
    file = write(tmp_path / "a.safetensors", arrays)
    whole, reduced = inspect(file, NAMES), inspect(file, NAMES, max_rank=2 * PAGE_RANK)
    assert (whole.rank, whole.has_magnitudes, whole.is_reduced) == (20, True, False)
    assert (reduced.rank, reduced.has_magnitudes, reduced.is_reduced) == (16, True, True)
    with pytest.raises(ValueError, match="DoRA takes a page of 16 ranks in addition to its own"):
        inspect(file, NAMES, max_rank=PAGE_RANK)
