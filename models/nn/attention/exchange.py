"""Attention among tokens that lie on several devices: Ulysses, rings, and rings of Ulysses.

Everything here runs inside a shard_map, on the shares of one device.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
from jaxtyping import Array, Bool, Float

from models.nn.attention.kernel import Attended, Kernel
from models.sharding import MeshAxes

Local = Float[Array, "batch tokens heads dim"]
Keys = Bool[Array, " tokens"] | None
Attend = Callable[[Local, Local, Local, Keys], Local]


def ring(axes: MeshAxes, devices: int, kernel: Kernel, scale: float) -> Attend:
    """Every device keeps its queries; keys and values go round, one neighbour a turn.

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
    """Some of the tokens and all heads → all tokens and some of the heads, and back.

    Source: Jacobs et al. 2023, "DeepSpeed Ulysses", section 3.
    """
    if not axes:
        return inner
    to_heads = partial(jax.lax.all_to_all, axis_name=axes, split_axis=2, concat_axis=1, tiled=True)
    to_tokens = partial(jax.lax.all_to_all, axis_name=axes, split_axis=1, concat_axis=2, tiled=True)

    def attend(q: Local, k: Local, v: Local, keys: Keys) -> Local:
        everyones = None if keys is None else jax.lax.all_gather(keys, axes, tiled=True)
        return to_tokens(inner(to_heads(q), to_heads(k), to_heads(v), everyones))

    return attend


def _to_next(axes: MeshAxes, devices: int, x: Array) -> Array:
    return jax.lax.ppermute(x, axes, [(i, (i + 1) % devices) for i in range(devices)])
