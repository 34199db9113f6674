"""Networks as shapes alone: what a loader fills, and what a planner compiles.

Under `nnx.eval_shape` a plain `nnx.Rngs` counts its keys in a traced variable, and each count
makes jax compose an error's text that nobody reads: of the three seconds that SDXL's UNet took
to build, four fifths. Shapes need no two keys that differ.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar, cast

import jax
from flax import nnx

Module = TypeVar("Module", bound=nnx.Module)

MOST = 16
"""Networks remembered: more than the largest checkpoint has."""


def abstract_module(kind: Callable[..., Module], *args: Any, **options: Any) -> Module:
    """`kind(*args, rngs=…, **options)`, every parameter a `jax.ShapeDtypeStruct`.

    A start asks for each network four times (to plan and to load, as it is stored and as it is
    used), and Flux's take a second to build: what is asked for again is a copy.

    Args:
        args, options: that can be hashed, as configs can.
    """
    built = _built(kind, args, tuple(sorted(options.items())))
    return cast(Module, nnx.clone(built))


@lru_cache(MOST)
def _built(kind: Callable[..., nnx.Module], args: Any, options: Any) -> nnx.Module:
    made: nnx.Module = nnx.eval_shape(lambda: kind(*args, rngs=SameKey(0), **dict(options)))
    return made


class SameKey(nnx.Rngs):
    """Gives one key, whatever is asked for and however often: for shapes, never for numbers."""

    def __init__(self, key: int | jax.Array) -> None:
        super().__init__()
        self.default: nnx.RngStream = _SameStream(key, tag="default")


class _SameStream(nnx.RngStream):
    def __call__(self) -> jax.Array:
        key: jax.Array = self.key.get_value()
        return key
