"""Block sizes of the flash kernels: a table by chip and shape, and sizes that fit a sequence."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import jax.numpy as jnp

LANES, SUBLANES = 128, 16
"""Shape of a TPU's registers: key blocks are whole lanes, query blocks whole bfloat16 sublanes."""

TABLE = Path(__file__).with_name("blocks.json")


@dataclass(frozen=True)
class AttentionBlocks:
    """Block sizes of attention: queries and keys in memory at a time, and keys per product.

    Raises: ValueError: keys that are not whole lanes, queries that are not whole sublanes, or
        products that do not divide the keys.
    """

    q: int
    kv: int
    kv_compute: int

    def __post_init__(self) -> None:
        if self.q % SUBLANES or self.kv_compute % LANES or self.kv % self.kv_compute:
            raise ValueError(
                f"blocks of {self.q} queries and {self.kv} keys, {self.kv_compute} a product: "
                f"queries must be multiples of {SUBLANES}, keys of their product, "
                f"which must be a multiple of {LANES}"
            )


Choose = Callable[[jnp.dtype, int, int], AttentionBlocks]
"""Choice of blocks from the queries' dtype, the size of a head and the number of keys."""

DEFAULT_BLOCKS = AttentionBlocks(512, 512, 512)
"""Default for every chip. Source: the default of the published Wan and Flux configurations."""


@dataclass(frozen=True)
class Row:
    """Row of the block size table: blocks for at least `from_keys` keys on one kind of chip."""

    chip: str
    """Chip, as `jax.Device.device_kind` names it."""
    dtype: str
    dim: int
    """Dimension of the widest head that the blocks fit."""
    from_keys: int
    q: int
    kv: int
    kv_compute: int
    source: str
    """Source of the numbers: published, compiled (not timed) or timed, with versions."""

    @property
    def blocks(self) -> AttentionBlocks:
        """Attention block sizes of this row of the table."""
        return AttentionBlocks(self.q, self.kv, self.kv_compute)

    @property
    def key(self) -> tuple[str, str, int, int]:
        """Unique key of this row in the block size table."""
        return self.chip, self.dtype, self.dim, self.from_keys


def read(path: Path = TABLE) -> list[Row]:
    """Return the rows of the block size table."""
    return [Row(**row) for row in json.loads(path.read_text())]


def write(rows: Iterable[Row], path: Path = TABLE) -> None:
    """Write the block size table in order, one row per line."""
    ordered = sorted(rows, key=lambda row: row.key)
    lines = ",\n".join(f"  {json.dumps(asdict(row))}" for row in ordered)
    path.write_text(f"[\n{lines}\n]\n")


def of_chip(chip: str, rows: Iterable[Row] | None = None) -> Choose:
    """Return the choice of blocks from a chip's rows of the table, else `DEFAULT_BLOCKS`.

    Args:
        rows: None: read from `TABLE`.
    """
    of_this_chip = [row for row in (read() if rows is None else rows) if row.chip == chip]

    def choose(dtype: jnp.dtype, dim: int, keys: int) -> AttentionBlocks:
        fits = [
            row
            for row in of_this_chip
            if row.dtype == jnp.dtype(dtype).name and row.dim >= dim and row.from_keys <= keys
        ]
        nearest = max(fits, key=lambda row: (-row.dim, row.from_keys), default=None)
        return nearest.blocks if nearest else DEFAULT_BLOCKS

    return choose


def even(tokens: int, block: int, multiple: int) -> tuple[int, int]:
    """Return the size of the fewest equal blocks no larger than `block`, and their total tokens."""
    count = -(-tokens // block)
    size = rounded(-(-tokens // count), multiple)
    return size, count * size


def rounded(size: int, multiple: int) -> int:
    """Round a number up to a multiple."""
    return -(-size // multiple) * multiple
