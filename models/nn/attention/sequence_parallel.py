"""Attention among tokens that lie on several devices: Ulysses, rings, and rings of Ulysses.

Everything here runs inside a shard_map, on the shares of one device.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from models.nn.kernels.kernel import Attended, Kernel
from models.parallel.axis_rules import MeshAxes

Local = Float[Array, "batch tokens heads dim"]
Keys = Bool[Array, " tokens"] | None
Attend = Callable[[Local, Local, Local, Keys], Local]


def whole(keys: Bool[np.ndarray, " tokens"] | None, kernel: Kernel, scale: float) -> Attend:
    """Attend where every key is here.

    Which of them count is known before the program runs: the others are left out, and the kernel
    masks nothing.
    """

    def attend(q: Local, k: Local, v: Local, _: Keys) -> Local:
        found = kernel(q, counted_only(k, keys), counted_only(v, keys), scale=scale)
        return found.values.astype(v.dtype)

    return attend


def ring(axes: MeshAxes, devices: int, kernel: Kernel, scale: float) -> Attend:
    """Ring attention: queries stay on their device; keys and values go round, a neighbour a turn.

    Source: Liu et al. 2023, "Ring Attention with Blockwise Transformers", section 3.
    """

    def attend(q: Local, k: Local, v: Local, keys: Keys) -> Local:
        found: Attended | None = None
        for turn in range(devices):
            here = kernel(q, k, v, scale=scale, keys=keys)
            found = here if found is None else found.merge(here)
            if turn < devices - 1:
                k, v, keys = jax.tree.map(partial(_to_next, axes, devices), (k, v, keys))
        assert found is not None
        return found.values.astype(v.dtype)

    return attend


def ulysses(axes: MeshAxes, inner: Attend) -> Attend:
    """Ulysses: some of the tokens and all heads → all tokens and some of the heads, and back.

    The heads of all rows are one set of heads: their product has to divide evenly, not the heads of
    each row (12 heads of two guidance passes swap among 8 devices), and less is moved on the device
    (compiled for v6e, two rows: 5 copies instead of 8, 1.07 GB instead of 1.31). Queries, keys and
    values swap one by one: stacked for a single swap they move a third more.

    Source: Jacobs et al. 2023, "DeepSpeed Ulysses", section 3.
    """
    if not axes:
        return inner
    to_heads = partial(jax.lax.all_to_all, axis_name=axes, split_axis=2, concat_axis=1, tiled=True)
    to_tokens = partial(jax.lax.all_to_all, axis_name=axes, split_axis=1, concat_axis=2, tiled=True)

    def attend(q: Local, k: Local, v: Local, keys: Keys) -> Local:
        everyones = None if keys is None else jax.lax.all_gather(keys, axes, tiled=True)
        q_heads, k_heads, v_heads = (to_heads(one_row(x)) for x in (q, k, v))
        return rows(to_tokens(inner(q_heads, k_heads, v_heads, everyones)), q.shape[0])

    return attend


def one_row(x: Local) -> Float[Array, "1 tokens batch_heads dim"]:
    """The rows' heads side by side."""
    return x.transpose(1, 0, 2, 3).reshape(1, x.shape[1], -1, x.shape[3])


def rows(x: Float[Array, "1 tokens batch_heads dim"], count: int) -> Local:
    """The inverse of `one_row`."""
    return x.reshape(x.shape[1], count, -1, x.shape[3]).transpose(1, 0, 2, 3)


def counted_only(
    x: Local, keys: Bool[np.ndarray, " tokens"] | None
) -> Float[Array, "batch _counted heads dim"]:
    """Drop tokens that do not count, by slices: a gather would go token by token."""
    if keys is None:
        return x
    edges = np.flatnonzero(np.diff(keys, prepend=False, append=False))
    runs = [x[:, start:end] for start, end in edges.reshape(-1, 2)]
    return jnp.concatenate(runs, axis=1)


def _to_next(axes: MeshAxes, devices: int, x: Array) -> Array:
    return jax.lax.ppermute(x, axes, [(i, (i + 1) % devices) for i in range(devices)])
