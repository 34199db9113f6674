"""Block-size search: times local chips, compiles for other chips, and writes the table."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from models.nn.kernels.block_size_search import Case, candidates, main, search
from models.nn.kernels.block_sizes import AttentionBlocks, read, write
from tests.models.nn.attention.test_compiled import LIBTPU


def test_candidates_do_not_exceed_the_sequence() -> None:
    options = list(candidates(Case("bfloat16", 128, 4096, 4096)))
    assert AttentionBlocks(2048, 2048, 1024) in options and len(set(options)) == len(options)
    assert all(blocks.q <= 4096 and blocks.kv <= 4096 for blocks in options)
    assert list(candidates(Case("bfloat16", 128, 100, 77))) == [AttentionBlocks(112, 128, 128)]


def test_best_candidate_is_first_and_infeasible_ones_are_dropped() -> None:
    case = Case("bfloat16", 128, 4096, 4096)
    results = search(case, lambda case, blocks: None if blocks.q > 1024 else 1 / blocks.kv)
    assert results[0][1].kv == 4096 and max(blocks.q for _, blocks in results) == 1024


def test_a_chip_that_is_here_is_timed(tmp_path: Path) -> None:
    table = tmp_path / "blocks.json"
    write([], table)
    sizes = ["--dtype", "float32", "--dim", "8", "--queries", "16", "--keys", "600"]
    main(["cpu", *sizes, "--heads", "1", "--write", "--table", str(table)])
    (row,) = read(table)
    assert row.key == ("cpu", "float32", 8, 600) and row.source.startswith("timed")


def test_a_chip_that_is_not_here_is_compiled_for(tmp_path: Path) -> None:
    table = tmp_path / "blocks.json"
    write([], table)
    module = [sys.executable, "-m", "models.nn.kernels.block_size_search"]
    sizes = ["--queries", "128", "--keys", "100"]
    completed = subprocess.run(
        [*module, "TPU v5 lite", *sizes, "--write", "--table", table],
        env={**os.environ, **LIBTPU},
        capture_output=True,
        check=True,
        text=True,
    )
    (row,) = read(table)
    assert row.blocks == AttentionBlocks(128, 128, 128) and "libtpu" in row.source
    bundles = int(completed.stdout.split()[3])
    # 128 x 128 products of 128, twice, and their exponentials: a plausible number of bundles.
    assert 50 < bundles < 10_000


MIN_SHARE_OF_PEAK = 0.58
"""Fraction of v6e's peak, for Wan's 75,600 tokens with the table's blocks. Compiled: 0.608 (libtpu
0.0.52).
"""


def test_our_own_kernel_fills_the_matrix_units() -> None:
    """The compiler's schedule of the whole loop over a head's queries and keys."""
    module = [sys.executable, "-m", "tests.models.nn.attention.schedule_for_tpus"]
    completed = subprocess.run(
        module, env={**os.environ, **LIBTPU}, capture_output=True, check=True, text=True
    )
    assert MIN_SHARE_OF_PEAK < float(completed.stdout) < 2 / 3  # upper bound for heads of 128
