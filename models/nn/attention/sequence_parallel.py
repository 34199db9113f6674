"""Sequence-parallel attention, with tokens split over devices: Ulysses, rings, rings of Ulysses.

Everything here runs inside a shard_map, on the share of one device.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from models.nn.kernels.kernel import AttentionOutput, Kernel
from models.parallel.axis_rules import MeshAxes

Local = Float[Array, "batch tokens heads dim"]
Keys = Bool[Array, " tokens"] | None
Attend = Callable[[Local, Local, Local, Keys], Local]


def full_attention(
    keys: Bool[np.ndarray, " tokens"] | None, kernel: Kernel, scale: float
) -> Attend:
    """Build attention for devices that hold all keys, with a constant mask.

    The mask is constant: masked keys are dropped, and the kernel masks nothing.
    """

    def attend(q: Local, k: Local, v: Local, _: Keys) -> Local:
        attended = kernel(q, counted_only(k, keys), counted_only(v, keys), scale=scale)
        return attended.values.astype(v.dtype)

    return attend


def ring(axes: MeshAxes, devices: int, kernel: Kernel, scale: float) -> Attend:
    """Build ring attention: queries stay; keys and values move to the next device in each round.

    Source: Liu et al. 2023, "Ring Attention with Blockwise Transformers", section 3.
    """

    def attend(q: Local, k: Local, v: Local, keys: Keys) -> Local:
        attended: AttentionOutput | None = None
        for turn in range(devices):
            part = kernel(q, k, v, scale=scale, keys=keys)
            attended = part if attended is None else attended.merge(part)
            if turn < devices - 1:
                k, v, keys = jax.tree.map(partial(_to_next, axes, devices), (k, v, keys))
        assert attended is not None
        return attended.values.astype(v.dtype)

    return attend


def ulysses(axes: MeshAxes, inner: Attend) -> Attend:
    """Build Ulysses attention: swap split tokens for split heads, attend, and swap back.

    The heads of all rows form one axis. So only its length has to divide evenly (12 heads of two
    guidance passes divide over 8 devices), and less is moved on the device (compiled for v6e, two
    rows: 5 copies instead of 8, 1.07 GB instead of 1.31). Queries, keys and values are exchanged
    separately: stacked for a single exchange they move a third more.

    Source: Jacobs et al. 2023, "DeepSpeed Ulysses", section 3.
    """
    if not axes:
        return inner
    to_heads = partial(jax.lax.all_to_all, axis_name=axes, split_axis=2, concat_axis=1, tiled=True)
    to_tokens = partial(jax.lax.all_to_all, axis_name=axes, split_axis=1, concat_axis=2, tiled=True)

    def attend(q: Local, k: Local, v: Local, keys: Keys) -> Local:
        all_keys = None if keys is None else jax.lax.all_gather(keys, axes, tiled=True)
        q_heads, k_heads, v_heads = (to_heads(merge_rows(x)) for x in (q, k, v))
        return separate_rows(to_tokens(inner(q_heads, k_heads, v_heads, all_keys)), q.shape[0])

    return attend


def merge_rows(x: Local) -> Float[Array, "1 tokens batch_heads dim"]:
    """Merge the row and head axes into one axis, so that it divides evenly among devices."""
    return x.transpose(1, 0, 2, 3).reshape(1, x.shape[1], -1, x.shape[3])


def separate_rows(x: Float[Array, "1 tokens batch_heads dim"], count: int) -> Local:
    """Separate the heads of rows: the inverse of `merge_rows`."""
    return x.reshape(x.shape[1], count, -1, x.shape[3]).transpose(1, 0, 2, 3)


def counted_only(
    x: Local, keys: Bool[np.ndarray, " tokens"] | None
) -> Float[Array, "batch _counted heads dim"]:
    """Drop masked tokens by slices: a gather would read token by token."""
    if keys is None:
        return x
    edges = np.flatnonzero(np.diff(keys, prepend=False, append=False))
    runs = [x[:, start:end] for start, end in edges.reshape(-1, 2)]
    return jnp.concatenate(runs, axis=1)


def _to_next(axes: MeshAxes, devices: int, x: Array) -> Array:
    received: Array = jax.lax.ppermute(x, axes, [(i, (i + 1) % devices) for i in range(devices)])
    return received
