"""Random weights, generated on the devices, for benchmarks of full-size networks.

Programs on each device generate its own part of an array, without host memory or transfers. The
values do not depend on the sharding.
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
    """A `models.loading.sources.Reader` with random weights and blank tokenizers; configs are read.

    Kernels and tables have mean 0 and a variance of 1 / inputs, which keeps activations finite at
    any depth. Gains are 1 and biases 0.

    Args:
        everywhere: sharding of replicated arrays; None: JAX's default device.
        seed: of all arrays.
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
        """Create a network as `models.weights.loader.load` does, without reading files."""
        shapes = super().network(module, place, renames, sharding=sharding)
        return self._with_random_arrays(shapes)

    def preview(self, mean_latents: MeanLatents, latent_channels: int) -> nnx.Linear:
        """Return a preview with random weights."""
        return self._with_random_arrays(abstract_preview(latent_channels))

    def _with_random_arrays(self, module: Module) -> Module:
        leaves = flat_parameters(module)
        arrays: dict[str, Array] = {}
        for number, (path, leaf) in enumerate(as_stored(leaves).items()):
            used = as_used(path, self._draw(path, number, leaf), leaves, self._place)
            arrays |= {path: self._transfer(array) for path, array in used.items()}
        return filled(module, arrays)

    def _transfer(self, array: Array) -> Array:
        """Return the array in its final memory; a hook for subclasses."""
        return array

    def _place(self, path: str, leaf: nnx.Variable[Any]) -> Any:
        return leaf.get_value().sharding or self._everywhere

    def _draw(self, path: str, number: int, leaf: nnx.Variable[Any]) -> Array:
        shape: tuple[int, ...] = tuple(leaf.shape)
        inputs = shape[1:-1] if _is_stacked(leaf) else shape[:-1]
        if len(shape) - _is_stacked(leaf) < 2:
            reach, middle = 0.0, 0.0 if path.endswith("bias") else 1.0
        else:
            reach, middle = math.sqrt(3 / math.prod(inputs)), 0.0
        seed = (self._seed + number * GOLDEN) % 2**32
        array: Array = uniform(shape, jnp.dtype(leaf.dtype), self._place(path, leaf))(
            np.uint32(seed), np.float32(reach), np.float32(middle)
        )
        return array


def _is_stacked(leaf: nnx.Variable[Any]) -> bool:
    """Return whether the first axis of a leaf counts stacked layers."""
    return "layers" in (leaf.get_metadata().get("axes") or ())


@cache
def uniform(shape: tuple[int, ...], dtype: np.dtype, place: Any) -> Any:
    """Return a program (seed, reach, middle) → uniform values within `reach` of `middle`.

    Arrays of equal shape share the program.
    """

    def draw(seed: Array, reach: Array, middle: Array) -> Array:
        bits = _mixed(_places(shape) + seed) >> 8
        unit = bits.astype(jnp.float32) * np.float32(2**-23) - 1
        return (middle + reach * unit).astype(dtype)

    return jax.jit(draw, out_shardings=place)


def _places(shape: tuple[int, ...]) -> Array:
    """Return the row-major index of each element of a shape, uint32 [*shape], with overflow."""
    number = jnp.zeros(shape, jnp.uint32)
    for axis, size in enumerate(shape):
        number = number * np.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
    return number


def _mixed(bits: Array) -> Array:
    """Hash each element of an integer array, to pseudorandom bits.

    JAX's own generator takes ten times as long to compile, again for each shape, and the quality of
    these values does not matter. Source: Appleby, MurmurHash3, fmix32.
    """
    bits = (bits ^ (bits >> 16)) * np.uint32(0x85EBCA6B)
    bits = (bits ^ (bits >> 13)) * np.uint32(0xC2B2AE35)
    return bits ^ (bits >> 16)
