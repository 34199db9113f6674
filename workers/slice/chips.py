"""Data of chips: rated performance, and the share that these programs reach.

Source, of TPUs: docs.cloud.google.com/tpu/docs/{v4,v5e,v5p,v6e,tpu7x}. ICI there covers all ports
of a chip in both directions; here it is one port and direction. Memory is what libtpu 0.0.51 gives
a program. Of GPUs: NVIDIA's data sheets of the A100, H100, H200, L40S and L4, dense bfloat16,
NVLink or PCIe in one direction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

GIB = 2**30


@dataclass(frozen=True)
class Efficiency:
    """Assumed shares of the rated peaks that programs reach; not measured."""

    matmul: float
    attention: float
    conv: float


BROAD_TPU = Efficiency(matmul=0.45, attention=0.58, conv=0.35)
"""Matrix units of 256 x 256. A head of 128 fills half of them in one of attention's two products:
at most two thirds of the peak. 0.58 is the static schedule of this project's kernel for Flux's
4,608 tokens; for Wan's 75,600 it is 0.61 (docs/performance/speed.md). Linears: between the
compiler's schedule (0.3) and tuned layouts (0.45)."""
NARROW_TPU = Efficiency(matmul=0.55, attention=0.5, conv=0.4)
"""Matrix units of 128 x 128, which a head of 128 fills."""
HOPPER = Efficiency(matmul=0.65, attention=0.6, conv=0.4)
AMPERE = Efficiency(matmul=0.65, attention=0.55, conv=0.4)


@dataclass(frozen=True)
class Chip:
    """Kind of device as JAX counts it, with its rates. Links are rated in one direction."""

    name: str
    kind: Literal["tpu", "gpu"]
    peak_flops: float
    """Per second, bfloat16, dense."""
    memory_bytes: int
    """Memory available to programs."""
    memory_bytes_s: float
    ici_bytes_s: float
    """Rate of one collective to adjacent chips, or through the host's switch."""
    dcn_bytes_s: float
    """Rate per device between slices or hosts."""
    efficiency: Efficiency
    chips: float = 1
    """Chips per device; 0.5 if JAX exposes two devices per chip."""


TPU_V4 = Chip(
    "v4", "tpu", 275e12 / 2, 16 * GIB, 1.2e12 / 2, 50e9 / 2, 6.25e9 / 2, NARROW_TPU, chips=0.5
)
TPU_V5E = Chip("v5e", "tpu", 197e12, int(15.75 * GIB), 819e9, 50e9, 3.125e9, NARROW_TPU)
TPU_V5P = Chip("v5p", "tpu", 459e12, int(95.73 * GIB), 2765e9, 100e9, 6.25e9, NARROW_TPU)
TPU_V6E = Chip("v6e", "tpu", 918e12, int(31.24 * GIB), 1638e9, 100e9, 12.5e9, BROAD_TPU)
TPU_7X = Chip(
    "tpu7x",
    "tpu",
    2307e12 / 2,
    int(94.74 * GIB),
    7380e9 / 2,
    100e9,
    12.5e9 / 2,
    BROAD_TPU,
    chips=0.5,
)

GPU_SHARE = 0.92
"""Usable share of a GPU's memory; the driver, CUDA and libraries take the rest."""


def _gpu(
    name: str, tflops: float, gb: float, gb_s: float, link_gb_s: float, by: Efficiency
) -> Chip:
    memory = int(gb * 1e9 * GPU_SHARE)
    return Chip(name, "gpu", tflops * 1e12, memory, gb_s * 1e9, link_gb_s * 1e9, 50e9, by)


CHIPS: Mapping[str, Chip] = {
    chip.name: chip
    for chip in (
        TPU_V4,
        TPU_V5E,
        TPU_V5P,
        TPU_V6E,
        TPU_7X,
        _gpu("a100-40", 312, 40, 1555, 300, AMPERE),
        _gpu("a100-80", 312, 80, 2039, 300, AMPERE),
        _gpu("h100", 989, 80, 3350, 450, HOPPER),
        _gpu("h200", 989, 141, 4800, 450, HOPPER),
        _gpu("l40s", 362, 48, 864, 32, AMPERE),
        _gpu("l4", 121, 24, 300, 32, AMPERE),
    )
}
"""Chips by name, the prefix of topologies."""

COLLECTIVE_S = 5e-6
"""Latency of a collective before its first byte. An assumption."""

CLOCK_HZ: Mapping[str, float] = {
    "v4": 1.05e9,
    "v5e": 1.5e9,
    "v5p": 1.75e9,
    "v6e": 1.75e9,
    "tpu7x": 2.2e9,
}
"""Clock of a TPU's cores: the rated peak over the FLOPs of its matrix units per cycle."""
