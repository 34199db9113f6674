"""Machine, versions and flags that figures belong to: without them they say nothing."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("jax", "jaxlib", "flax", "libtpu", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "torch",
            "diffusers", "transformers")  # fmt: skip
VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "JAX_PLATFORMS", "XLA_PYTHON_CLIENT_MEM_FRACTION")
CPU_INFO = Path("/proc/cpuinfo")


def machine() -> dict[str, Any]:
    """Return what a figure depends on: processor, cores, memory and versions."""
    return {
        "processor": processor(CPU_INFO.read_text() if CPU_INFO.is_file() else ""),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
    }


def processor(info: str) -> str:
    """Return the name of the processor.

    Args:
        info: of /proc/cpuinfo.
    """
    names = [line.partition(":")[2].strip() for line in info.splitlines() if "model name" in line]
    return names[0] if names else platform.machine()


def versions() -> dict[str, str]:
    """Return the versions of those packages that are installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def flags(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the flags that the compiler was given."""
    return {name: environment[name] for name in VARIABLES if name in environment}
