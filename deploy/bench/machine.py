"""Environment of a measurement: machine, package versions and compiler flags."""

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
    """Return the machine of a measurement: processor, cores, memory, system and load."""
    return {
        "processor": processor(CPU_INFO.read_text() if CPU_INFO.is_file() else ""),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
    }


def processor(info: str) -> str:
    """Return the name of this machine's processor.

    Args:
        info: text of /proc/cpuinfo.
    """
    names = [line.partition(":")[2].strip() for line in info.splitlines() if "model name" in line]
    return names[0] if names else platform.machine()


def versions() -> dict[str, str]:
    """Return the versions of the installed packages in `PACKAGES`."""
    installed = {}
    for name in PACKAGES:
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            continue
    return installed


def flags(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment variables with compiler flags."""
    return {name: environment[name] for name in VARIABLES if name in environment}
