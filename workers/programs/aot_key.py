"""Cache key of a compiled program, except its arguments: the process and the model.

Two processes with equal keys trace and compile equal programs from equal arguments. Everything that
could make a difference is included: an unnecessary program is better than a wrong one.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from models.interface.pipeline import PyTree
from models.nn.kernels.kernel import kernel_name
from models.parallel.axis_rules import Layout

PACKAGES = ("jax", "flax", "numpy", "ml_dtypes", "libtpu", "nvidia", "tokamax", "qwix")
"""Name prefixes of packages involved in tracing, compiling or running."""
ROOMS = ("models", "workers")
DEMO = "models/demo"
"""Checkpoints and their training: not part of any program."""
SUFFIXES = (".py", ".json", ".toml")
FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "NVIDIA_TF32_OVERRIDE")
"""Environment variables that XLA and its libraries read."""
NO_MATTER = (
    *("cache", "dump", "log", "traceback", "coordinat", "distributed", "transfer", "profil"),
    *("platforms", "num_cpu_devices"),
)
"""Parts of the names of JAX options that change no program: cache locations, logging, and device
discovery, since the devices in use are in the key."""
CPU_LINES = ("model name", "flags", "Features", "CPU part")
"""Lines of /proc/cpuinfo in the key, because XLA compiles for the exact processor."""


def of_process(device: jax.Device) -> dict[str, Any]:
    """Return the process's part of executables' keys: software, flags, options and machine.

    Args:
        device: a device that programs run on; it may be only described, not present.
    """
    client = device.client
    return {
        "python": platform.python_version(),
        "packages": packages(),
        "code": code(Path(__file__).parents[2]),
        "flags": {name: os.environ.get(name, "") for name in FLAGS},
        "options": options(),
        "platform": [device.platform, client.platform_version],
        "machine": (
            [machine(), client.device_count()] if device.platform == "cpu" else platform.machine()
        ),
        "process": [jax.process_index(), jax.process_count()],
    }


@cache
def packages() -> list[str]:
    """Return `name-version` of each package that affects programs, from their folders' names.

    Reading the folders' contents would take a second.
    """
    folders = (
        folder for directory in sys.path for folder in Path(directory or ".").glob("*.dist-info")
    )
    names = {folder.stem.lower() for folder in folders}
    return sorted(name for name in names if name.startswith(PACKAGES))


@cache
def code(root: Path) -> str:
    """Digest the names and texts of all sources that affect tracing."""
    hasher = sha256()
    for path in sorted(_sources(root)):
        hasher.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return hasher.hexdigest()


def _sources(root: Path) -> Iterable[Path]:
    files = (file for folder in ROOMS for file in (root / folder).rglob("*"))
    return (file for file in files if file.suffix in SUFFIXES and root / DEMO not in file.parents)


def options() -> dict[str, str]:
    """Return JAX's configuration options that affect programs."""
    return {
        name: str(value)
        for name, value in sorted(jax.config.values.items())
        if not any(word in name for word in NO_MATTER)
    }


def machine() -> str:
    """Digest the processor's features, and the number of cores that XLA may use."""
    features = {f"{platform.machine()} {len(os.sched_getaffinity(0))}"}
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        lines = [platform.processor()]
    features.update(line for line in lines if line.startswith(CPU_LINES))
    return sha256("\n".join(sorted(features)).encode()).hexdigest()


def of_devices(devices: Iterable[jax.Device]) -> list[list[Any]]:
    """Return the number, kind and coordinates of each device, for executables' keys."""
    return [
        [device.id, device.device_kind, str(getattr(device, "coords", ""))] for device in devices
    ]


def of_layout(layout: Layout) -> dict[str, Any]:
    """Return the layout's part of executables' keys: mesh, devices, axis table and kernels."""
    return {
        "mesh": [[name, size] for name, size in layout.mesh.shape.items()],
        "devices": of_devices(layout.mesh.devices.flat),
        "table": {axis: list(names) for axis, names in layout.table.items()},
        "kernels": kernels(layout),
    }


def kernels(layout: Layout) -> list[str]:
    """Return the names of the kernels of attention and of 8-bit products.

    Their variants follow from the device, the model's dtype and the code.
    """
    return [kernel_name(kernel) for kernel in (layout.kernel, layout.eight_bit)]


def of_arguments(tree: PyTree) -> str:
    """Digest the names, shapes, dtypes and shardings of arrays, which may be abstract."""
    hasher = sha256()
    for path, leaf in jax.tree.leaves_with_path(tree):
        sharding = plain(getattr(leaf, "sharding", None))
        described = (jax.tree_util.keystr(path), np.shape(leaf), str(leaf.dtype), str(sharding))
        hasher.update(repr(described).encode())
    hasher.update(str(jax.tree.structure(tree)).encode())
    return hasher.hexdigest()


def plain(sharding: Sharding | None) -> Sharding | None:
    """Normalize a sharding: drop trailing dimensions that are not split."""
    if not isinstance(sharding, NamedSharding):
        return sharding
    axes = list(sharding.spec)
    while axes and axes[-1] is None:
        axes.pop()
    return NamedSharding(sharding.mesh, PartitionSpec(*axes), memory_kind=sharding.memory_kind)


def of_model(config_digest: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model's part of executables' keys: its configs and settings.

    Weights are arguments of programs, so their values are excluded; keys of facts about them
    contain the fingerprint.

    Args:
        config_digest: `ModelSpec.config_digest`.
        settings: settings the model was loaded with.
    """
    return {"configs": config_digest, "settings": dict(settings)}
