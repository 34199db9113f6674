"""Program that prints attention's share of v6e's peak for Wan at 720p, by the compiler's schedule.

A separate process: libtpu reads its settings once.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import jax.numpy as jnp

from models.nn.kernels.block_size_search import TOPOLOGIES, Case, transposed_kernel_cycles
from models.nn.kernels.block_sizes import of_chip
from models.nn.kernels.compiler_schedule import dump_to
from models.parallel.jax_internals import get_topology_desc
from workers.slice.chips import CLOCK_HZ, TPU_V6E

CHIP = "TPU v6 lite"
WAN = Case("bfloat16", 128, 75_600, 75_600)


def main() -> None:
    with tempfile.TemporaryDirectory() as dumps:
        os.environ["LIBTPU_INIT_ARGS"] = dump_to(dumps)
        device = get_topology_desc(TOPOLOGIES[CHIP], "tpu").devices[0]
        blocks = of_chip(CHIP)(jnp.dtype(WAN.dtype), WAN.dim, WAN.keys)
        cycles = transposed_kernel_cycles(WAN, blocks, device, Path(dumps))
    assert cycles is not None
    flops = 4 * WAN.queries * WAN.keys * WAN.dim
    print(flops / TPU_V6E.peak_flops * CLOCK_HZ["v6e"] / cycles)


if __name__ == "__main__":
    main()
