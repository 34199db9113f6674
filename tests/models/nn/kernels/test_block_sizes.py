"""Table of attention block sizes, and the choice of blocks for a sequence."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import pytest

from models.nn.kernels.block_sizes import (
    DEFAULT_BLOCKS,
    AttentionBlocks,
    Row,
    even,
    of_chip,
    read,
    write,
)
from models.nn.kernels.splash import key_parts


def row(from_keys: int, q: int, dim: int = 128) -> Row:
    return Row("TPU v9", "bfloat16", dim, from_keys, q, 256, 128, "made up")


def test_the_longest_sequences_that_fit_decide() -> None:
    choose = of_chip("TPU v9", [row(1024, 64), row(0, 32), row(4096, 128)])
    sizes = [choose(jnp.dtype("bfloat16"), 64, keys).q for keys in (77, 1023, 1024, 9999)]
    assert sizes == [32, 32, 64, 128]


def test_narrow_heads_have_blocks_of_their_own() -> None:
    choose = of_chip("TPU v9", [row(0, 32), row(2048, 96), row(1024, 64, dim=64)])
    sizes = [(64, 1024), (40, 9999), (64, 1023), (80, 9999), (128, 9999)]
    chosen = [choose(jnp.dtype("bfloat16"), dim, keys).q for dim, keys in sizes]
    assert chosen == [64, 64, 32, 96, 96]


@pytest.mark.parametrize(
    ("chip", "dtype", "dim"),
    [("TPU v8", "bfloat16", 128), ("TPU v9", "float32", 128), ("TPU v9", "bfloat16", 256)],
)
def test_unknown_cases_use_small_blocks(chip: str, dtype: str, dim: int) -> None:
    assert of_chip(chip, [row(0, 32)])(jnp.dtype(dtype), dim, 5000) == DEFAULT_BLOCKS


def test_the_table_that_is_shipped() -> None:
    """Reading the table constructs every row's blocks, which validate themselves."""
    rows = read()
    assert len({row.key for row in rows}) == len(rows)
    assert [row.blocks.q for row in rows] and all(row.source for row in rows)
    wan = of_chip("TPU v6 lite")(jnp.dtype("bfloat16"), 128, 75_600)
    assert wan == AttentionBlocks(1024, 5120, 512)


def test_a_written_table_is_read_again(tmp_path: Path) -> None:
    table = tmp_path / "blocks.json"
    write([row(1024, 64), row(0, 32)], table)
    assert read(table) == [row(0, 32), row(1024, 64)]
    assert table.read_text().count("\n") == 4  # one line per row, for readable diffs


@pytest.mark.parametrize("sizes", [(100, 256, 128), (128, 256, 100), (128, 300, 128)])
def test_invalid_attention_block_sizes_are_rejected(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="multiple"):
        AttentionBlocks(*sizes)


@pytest.mark.parametrize(
    ("tokens", "wanted"), [(75_600, (3024, 75_600)), (18_900, (2704, 18_928)), (77, (80, 80))]
)
def test_even_blocks_pad_little(tokens: int, wanted: tuple[int, int]) -> None:
    assert even(tokens, 3024, 16) == wanted


def test_only_the_last_block_is_masked() -> None:
    blocks = AttentionBlocks(3024, 2048, 1024)
    assert key_parts(75_600, blocks) == [(0, 73_728, blocks), (73_728, 75_600, blocks)]
    assert key_parts(4096, blocks) == [(0, 4096, blocks)]
    assert key_parts(77, blocks) == [(0, 77, AttentionBlocks(3024, 128, 128))]
