"""Random weights, made where they lie: full-size networks to be timed, with no checkpoint at all.

Each array is drawn by a program on the devices that hold it, every device its own part, so that
neither host memory nor a wire sees it. The numbers are the same however they are split.
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array

from models.checkpoint.key_mapping import Renames
from models.checkpoint.safetensors import ComponentFiles
from models.loading.preview import MeanLatents, abstract_preview
from models.loading.sources import Shapes
from models.weights.loader import Change, Module, Sharding, filled, flat_parameters
from models.weights.quantize import as_stored, as_used

GOLDEN = 0x9E3779B9
"""Distance between the seeds of two arrays."""


class RandomWeights(Shapes):
    """A `models.loading.sources.Reader`: drawn weights, blank prompts, configs that are read.

    Kernels and tables have mean 0 and a variance of one over their inputs, so that activations stay
    finite through any depth; gains are 1 and biases 0.

    Args:
        everywhere: what lies whole on each device; None: JAX's default device.
        seed: of all the draws.
    """

    def __init__(self, everywhere: jax.sharding.Sharding | None = None, seed: int = 0) -> None:
        self._everywhere = everywhere
        self._seed = seed

    def network(
        self,
        module: Module,
        place: Path | ComponentFiles,
        renames: Renames,
        *,
        sharding: Sharding | None = None,
        change: Change | None = None,
    ) -> Module:
        """Build a network as `models.weights.loader.load` does, with nothing read."""
        shapes = super().network(module, place, renames, sharding=sharding)
        return self._drawn(shapes)

    def preview(self, mean_latents: MeanLatents, latent_channels: int) -> nnx.Linear:
        """Return a preview with random weights."""
        return self._drawn(abstract_preview(latent_channels))

    def _drawn(self, module: Module) -> Module:
        leaves = flat_parameters(module)
        arrays: dict[str, Array] = {}
        for number, (path, leaf) in enumerate(as_stored(leaves).items()):
            used = as_used(path, self._draw(path, number, leaf), leaves, self._place)
            arrays |= {path: self._transfer(array) for path, array in used.items()}
        return filled(module, arrays)

    def _transfer(self, array: Array) -> Array:
        """Return the array where it is to lie while the network runs."""
        return array

    def _place(self, path: str, leaf: nnx.Variable) -> Any:
        return leaf.get_value().sharding or self._everywhere

    def _draw(self, path: str, number: int, leaf: nnx.Variable) -> Array:
        shape: tuple[int, ...] = tuple(leaf.shape)
        inputs = shape[1:-1] if _is_stacked(leaf) else shape[:-1]
        if len(shape) - _is_stacked(leaf) < 2:
            reach, middle = 0.0, 0.0 if path.endswith("bias") else 1.0
        else:
            reach, middle = math.sqrt(3 / math.prod(inputs)), 0.0
        seed = (self._seed + number * GOLDEN) % 2**32
        made: Array = uniform(shape, jnp.dtype(leaf.dtype), self._place(path, leaf))(
            np.uint32(seed), np.float32(reach), np.float32(middle)
        )
        return made


def _is_stacked(leaf: nnx.Variable) -> bool:
    """Return whether its first axis is that of the layers."""
    return "layers" in (leaf.get_metadata().get("axes") or ())


@cache
def uniform(shape: tuple[int, ...], dtype: np.dtype, place: Any) -> Any:
    """Draw (seed, reach, middle) → numbers up to `reach` from the middle.

    One program for all arrays of a shape.
    """

    def draw(seed: Array, reach: Array, middle: Array) -> Array:
        bits = _mixed(_places(shape) + seed) >> 8
        unit = bits.astype(jnp.float32) * np.float32(2**-23) - 1
        return (middle + reach * unit).astype(dtype)

    return jax.jit(draw, out_shardings=place)


def _places(shape: tuple[int, ...]) -> Array:
    """Number each element, row by row, uint32 [*shape]; it wraps."""
    number = jnp.zeros(shape, jnp.uint32)
    for axis, size in enumerate(shape):
        number = number * np.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
    return number


def _mixed(bits: Array) -> Array:
    """Mix bits.

    JAX's own generator takes ten times as long to compile, for each shape anew, and nobody studies
    these numbers. Source: Appleby, MurmurHash3, fmix32.
    """
    bits = (bits ^ (bits >> 16)) * np.uint32(0x85EBCA6B)
    bits = (bits ^ (bits >> 13)) * np.uint32(0xC2B2AE35)
    return bits ^ (bits >> 16)
