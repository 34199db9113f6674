"""Token sequences that a layout splits: padded to equal shares, joined and cut without moves.

Without a layout there is one share, and these functions are plain concatenation.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Shaped

from models.nn.layers.rope import RopeTable
from models.parallel.trace_options import trace_options


class Positions(NamedTuple):
    """Positions and key mask of padded tokens."""

    rope: RopeTable
    keys: Bool[np.ndarray, " all"] | Bool[Array, "batch all"] | None
    """Mask of tokens that count as keys, with a leading batch axis if rows differ; None: all."""
    generated_tokens: int | None = None
    """Number of leading image tokens that the first half of their vectors modulates; the second
    half modulates the others. None: the same vectors modulate all."""


def shares() -> int:
    """Return the number of devices that the layout splits a sequence over."""
    layout = trace_options().layout
    return 1 if layout is None else layout.size("tokens")


def padding(tokens: int) -> int:
    """Return the number of padding tokens that make a sequence divide over the devices."""
    return -tokens % shares()


def pad(x: Shaped[Array, "batch tokens *rest"]) -> Shaped[Array, "batch _padded *rest"]:
    """Append zero tokens, so that the sequence divides over the devices."""
    widths = [(0, 0)] * x.ndim
    widths[1] = (0, padding(x.shape[1]))
    return jnp.pad(x, widths) if widths[1][1] else x


def counted(*tokens: int) -> Bool[np.ndarray, " all"] | None:
    """Return the mask of unpadded tokens in joined sequences; None: there is no padding."""
    if not any(map(padding, tokens)):
        return None
    return join_host([np.arange(count + padding(count)) < count for count in tokens])


def join(
    parts: Sequence[Shaped[Array, "batch _tokens *rest"]],
) -> Shaped[Array, "batch _all *rest"]:
    """Join padded sequences, so that each device's share consists of its shares of the parts."""
    joined: Array = _join(jnp, parts, axis=1)
    return joined


def join_host(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Join arrays on the host, [tokens, …], in the order of `join`."""
    joined: np.ndarray = _join(np, parts, axis=0)
    return joined


def join_positions(parts: Sequence[Positions]) -> Positions:
    """Join the positions of sequences, at least one of which has a key mask per row."""
    keys = [
        np.ones(part.rope.cos.shape[-2], bool) if part.keys is None else part.keys for part in parts
    ]
    (rows,) = {len(mask) for mask in keys if mask.ndim == 2}

    cos, sin = (
        join([jnp.broadcast_to(table, (rows, *table.shape[-2:])) for table in of_parts])
        for of_parts in zip(*(part.rope for part in parts), strict=True)
    )
    of_rows = [jnp.broadcast_to(mask, (rows, mask.shape[-1])) for mask in keys]
    return Positions(RopeTable(cos, sin), join(of_rows))


def cut(
    x: Shaped[Array, "batch all *rest"], *tokens: int
) -> list[Shaped[Array, "batch _tokens *rest"]]:
    """Cut joined tokens into the padded sequences: the inverse of `join`.

    Args:
        tokens: length of each sequence, padding included.
    """
    count = shares()
    shared = x.reshape(x.shape[0], count, -1, *x.shape[2:])
    ends = np.cumsum([size // count for size in tokens])
    parts = jnp.split(shared, ends[:-1], axis=2)
    return [part.reshape(x.shape[0], -1, *x.shape[2:]) for part in parts]


def cut_first(
    x: Shaped[Array, "batch all *rest"], tokens: int
) -> Shaped[Array, "batch _tokens *rest"]:
    """Cut the first of two joined sequences.

    Args:
        tokens: its length, padding included.
    """
    return cut(x, tokens, x.shape[1] - tokens)[0]


def cut_last(
    x: Shaped[Array, "batch all *rest"], tokens: int
) -> Shaped[Array, "batch _tokens *rest"]:
    """Cut the last of two joined sequences; `tokens` is as in `cut_first`."""
    return cut(x, x.shape[1] - tokens, tokens)[1]


def _join(numpy: ModuleType, parts: Sequence[Any], axis: int) -> Any:
    count = shares()
    shared = [
        part.reshape(*part.shape[:axis], count, -1, *part.shape[axis + 1 :]) for part in parts
    ]
    joined = numpy.concatenate(shared, axis=axis + 1)
    return joined.reshape(*parts[0].shape[:axis], -1, *parts[0].shape[axis + 1 :])
