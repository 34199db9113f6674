"""Compiles the kernels for chips that are not there, and says how it went.

A process of its own: libtpu reads its settings once, and the tests' own JAX knows the CPU alone.
"""

from __future__ import annotations

import json
import sys
from functools import partial

import jax
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from models.nn.attention.blocks import Blocks, read
from models.nn.attention.kernel import Kernel
from models.nn.attention.search import TOPOLOGIES
from models.nn.attention.select import flash_kernel, kernel_for

TOO_LARGE = Blocks(4096, 4096, 4096)
"""More than any of the chips has room for."""


def outcome(device: jax.Device, kernel: Kernel, shape: tuple[int, int, int], dtype: str) -> str:
    """
    Args:
        shape: queries, keys and the size of a head.
    """
    queries, keys, dim = shape
    mesh = Mesh([device], "one")
    place = NamedSharding(mesh, PartitionSpec())
    q, k = (
        jax.ShapeDtypeStruct((1, tokens, 2, dim), dtype, sharding=place)
        for tokens in (queries, keys)
    )
    try:
        with jax.set_mesh(mesh):
            jax.jit(partial(kernel, scale=1.0)).lower(q, k, k).compile()
    except jax.errors.JaxRuntimeError as error:
        return str(error).partition(":")[0]
    return "compiled"


def main() -> None:
    found = {}
    for chip, topology in TOPOLOGIES.items():
        device = topologies.get_topology_desc(topology, "tpu").devices[0]
        assert device.device_kind == chip
        most = max((row.blocks for row in read() if row.chip == chip), key=lambda b: b.q * b.kv)
        large = flash_kernel(device, lambda *_, most=most: most)
        found[chip] = {
            # The last block of keys is not whole: with a mask it takes most memory.
            "largest blocks": outcome(device, large, (most.q, most.kv - 1, 128), "bfloat16"),
            "text": outcome(device, kernel_for(device, "bfloat16"), (4096, 77, 64), "bfloat16"),
            "float32": outcome(device, kernel_for(device, "float32"), (100, 600, 80), "float32"),
        }
    found["TPU v5 lite"]["too large"] = outcome(
        topologies.get_topology_desc("v5e:1x1", "tpu").devices[0],
        flash_kernel(device, lambda *_: TOO_LARGE),
        (TOO_LARGE.q, TOO_LARGE.kv, 128),
        "bfloat16",
    )
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
