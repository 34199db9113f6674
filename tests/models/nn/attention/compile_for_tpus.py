"""Program that compiles the kernels for TPUs without TPU hardware and prints the outcomes as JSON.

A separate process: libtpu reads its settings once, and JAX in the tests' process supports only the
CPU.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from models.nn.kernels.block_size_search import TOPOLOGIES, compile_for
from models.nn.kernels.block_sizes import AttentionBlocks, read
from models.nn.kernels.int8_matmul import CHIPS, OfStack, product
from models.nn.kernels.select import kernel_for
from models.nn.layers.activations import tanh_gelu
from models.parallel.axis_rules import auto_mesh
from models.parallel.jax_internals import get_topology_desc

TOO_LARGE = AttentionBlocks(1024, 3072, 1024)
"""Slightly too large for a v5e: one block fits, but a double-buffered sequence of blocks does
not.
"""


def outcome(compilation: Callable[[], object]) -> str:
    try:
        compilation()
    except jax.errors.JaxRuntimeError as error:
        return str(error).partition(":")[0]
    return "compiled"


def small(device: jax.Device, queries: int, keys: int, dim: int, dtype: str) -> object:
    """Compile the chip's attention kernel with a partial last block."""
    mesh = auto_mesh([device], ("one",))
    place = NamedSharding(mesh, PartitionSpec())
    q, k = (
        jax.ShapeDtypeStruct((1, tokens, 2, dim), dtype, sharding=place)
        for tokens in (queries, keys)
    )
    with jax.set_mesh(mesh):
        return jax.jit(partial(kernel_for(device, dtype), scale=1.0)).lower(q, k, k).compile()


def of_eight_bits(device: jax.Device) -> object:
    """Compile an 8-bit matrix product with heads and rows as separate parts and partial blocks."""
    place = NamedSharding(auto_mesh([device], ("one",)), PartitionSpec())

    def shaped(dtype: str, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=place)

    def run(*arguments: jax.Array) -> jax.Array:
        heads, wide, values, number, columns, bias = arguments
        options: Any = {"activation": tanh_gelu, "heads": 6, "tokens_last": True}
        return product([heads, wide], OfStack(values, number), columns, bias, **options)

    arguments = (
        shaped("bfloat16", 2, 128, 300),
        shaped("bfloat16", 300, 128),
        shaped("int8", 2, 384, 768),
        shaped("int32"),
        shaped("float32", 768),
        shaped("bfloat16", 768),
    )
    with jax.set_mesh(place.mesh):
        return jax.jit(run).lower(*arguments).compile()


def main() -> None:
    outcomes = {}
    for chip, topology in TOPOLOGIES.items():
        device = get_topology_desc(topology, "tpu").devices[0]
        assert device.device_kind == chip
        largest = max((row.blocks for row in read() if row.chip == chip), key=lambda b: b.q * b.kv)
        outcomes[chip] = {
            "largest blocks": outcome(partial(compile_for, device, "bfloat16", 128, largest)),
            "text": outcome(partial(small, device, 4096, 200, 64, "bfloat16")),
            "float32": outcome(partial(small, device, 100, 600, 80, "float32")),
        }
        if chip in CHIPS:
            outcomes[chip]["eight bits"] = outcome(partial(of_eight_bits, device))
        if chip == "TPU v5 lite":
            too_large = partial(compile_for, device, "bfloat16", 128, TOO_LARGE)
            outcomes[chip]["too large"] = outcome(too_large)
    json.dump(outcomes, sys.stdout)


if __name__ == "__main__":
    main()
