"""GKE machines of pools, by chip and topology.

Source: docs.cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus, and of GPUs
docs.cloud.google.com/compute/docs/accelerator-optimized-machines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal


@dataclass(frozen=True)
class Machine:
    """Share of a machine that one pod takes, and the selectors of its nodes."""

    type: str
    """Machine type of Compute Engine."""
    kind: Literal["tpu", "cuda"]
    """Accelerator that the worker's image is built for."""
    accelerator: str
    """GKE's name of the chip."""
    topology: str
    """Topology of a TPU slice, or the number of GPUs."""
    chips: int
    """Chips of a pod."""
    hosts: int
    """Pods of a worker."""
    cpu: int
    """CPU request of a pod."""
    memory_gib: int
    """Memory request of a pod."""
    memory_limit_gib: int
    """Memory limit of a pod, without the GCS FUSE sidecar."""
    machine_chips: int
    """Chips of the machine; its pods share them."""

    @property
    def cpu_limit(self) -> int:
        """CPU limit of a pod: twice its request."""
        return 2 * self.cpu

    @property
    def form(self) -> Literal["tpu", "slice", "gpu", "gpus"]:
        """Kind of pod: TPUs of one host, a slice of several hosts, one GPU, or several GPUs."""
        if self.kind == "cuda":
            return "gpus" if self.chips > 1 else "gpu"
        return "slice" if self.hosts > 1 else "tpu"


def _tpu(
    accelerator: str, type: str, topology: str, chips: int, memory_gib: int = 128, cpu: int = 32
) -> tuple[str, Machine]:
    """Return a slice on machines of `chips` chips."""
    hosts = prod(map(int, topology.split("x"))) // chips
    sizes = (cpu, memory_gib, 2 * memory_gib, chips)
    return topology, Machine(type, "tpu", accelerator, topology, chips, hosts, *sizes)


def _shares(accelerator: str, type: str) -> Iterator[tuple[str, Machine]]:
    """Yield shares of a machine of eight GPUs."""
    for count in (1, 2, 4, 8):
        cpu, memory = max(12, 8 * count), (max(96, 32 * count), max(128, 64 * count))
        yield str(count), Machine(type, "cuda", accelerator, str(count), count, 1, cpu, *memory, 8)


def _gpus(accelerator: str, types: Mapping[int, tuple[str, int, int]]) -> dict[str, Machine]:
    """Return whole machines by their number of GPUs: type, CPU and memory requests."""
    return {
        str(count): Machine(
            type, "cuda", accelerator, str(count), count, 1, cpu, memory, 2 * memory, count
        )
        for count, (type, cpu, memory) in types.items()
    }


MACHINES: Mapping[str, Mapping[str, Machine]] = {
    "v4": dict(
        _tpu("tpu-v4-podslice", "ct4p-hightpu-4t", topology, 4) for topology in ("2x2x1", "2x2x2")
    ),
    "v5e": dict(
        (
            _tpu("tpu-v5-lite-podslice", "ct5lp-hightpu-4t", "2x2", 4, memory_gib=64),
            _tpu("tpu-v5-lite-podslice", "ct5lp-hightpu-8t", "2x4", 8, memory_gib=64),
            _tpu("tpu-v5-lite-podslice", "ct5lp-hightpu-4t", "4x4", 4, memory_gib=64),
        )
    ),
    "v6e": dict(
        (
            _tpu("tpu-v6e-slice", "ct6e-standard-1t", "1x1", 1, memory_gib=64, cpu=24),
            _tpu("tpu-v6e-slice", "ct6e-standard-4t", "2x2", 4),
            _tpu("tpu-v6e-slice", "ct6e-standard-8t", "2x4", 8),
            _tpu("tpu-v6e-slice", "ct6e-standard-4t", "4x4", 4),
        )
    ),
    "v5p": dict(
        _tpu("tpu-v5p-slice", "ct5p-hightpu-4t", topology, 4) for topology in ("2x2x1", "2x2x2")
    ),
    "tpu7x": dict(
        _tpu("tpu7x", "tpu7x-standard-4t", topology, 4) for topology in ("2x2x1", "2x2x2")
    ),
    "h100": dict(_shares("nvidia-h100-80gb", "a3-highgpu-8g")),
    "h200": dict(_shares("nvidia-h200-141gb", "a3-ultragpu-8g")),
    "a100-80": _gpus(
        "nvidia-a100-80gb",
        {
            1: ("a2-ultragpu-1g", 10, 48),
            2: ("a2-ultragpu-2g", 20, 96),
            4: ("a2-ultragpu-4g", 40, 192),
            8: ("a2-ultragpu-8g", 80, 384),
        },
    ),
    "a100-40": _gpus(
        "nvidia-tesla-a100",
        {
            2: ("a2-highgpu-2g", 20, 48),
            4: ("a2-highgpu-4g", 40, 128),
            8: ("a2-highgpu-8g", 80, 192),
        },
    ),
    "l4": _gpus("nvidia-l4", {4: ("g2-standard-48", 40, 64), 8: ("g2-standard-96", 80, 128)}),
}
"""Machines by the names of `atelier plan`, chip and topology. Smaller ones, such as one v5e chip or
one A100 of 40 GB, lack the memory for the weights' cache."""
