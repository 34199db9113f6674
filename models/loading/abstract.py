"""Abstract networks without arrays, which loaders fill and planners compile.

Under `nnx.eval_shape` a plain `nnx.Rngs` counts its keys in a traced variable. For each count jax
composes an unused error text: this took four fifths of the three seconds to build SDXL's UNet.
Shapes do not need distinct keys.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar, cast

import jax
from flax import nnx

Module = TypeVar("Module", bound=nnx.Module)

CACHE_SIZE = 16
"""Maximum number of cached networks: more than the largest checkpoint has."""


def abstract_module(kind: Callable[..., Module], *args: Any, **options: Any) -> Module:
    """Build `kind(*args, rngs=…, **options)` with `jax.ShapeDtypeStruct` parameters.

    Returns copies of a cached module. A start needs each network four times (to plan and to load,
    as stored and as used), and Flux's takes a second to build.

    Args:
        args, options: hashable, as configs are.
    """
    built = _built(kind, args, tuple(sorted(options.items())))
    return cast(Module, nnx.clone(built))


@lru_cache(CACHE_SIZE)
def _built(kind: Callable[..., nnx.Module], args: Any, options: Any) -> nnx.Module:
    module: nnx.Module = nnx.eval_shape(lambda: kind(*args, rngs=SameKey(0), **dict(options)))
    return module


class SameKey(nnx.Rngs):
    """Generator that always returns the same key: for shapes only."""

    def __init__(self, key: int | jax.Array) -> None:
        super().__init__()
        self.default: nnx.RngStream = _SameStream(key, tag="default")


class _SameStream(nnx.RngStream):
    def __call__(self) -> jax.Array:
        key: jax.Array = self.key.get_value()
        return key
