"""Key of a compiled program beside its arguments: of this process, and of its model.

Two processes with equal answers trace and compile the same from the same arguments. Whatever could
make a difference is in here: better a program too many than a wrong one.
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
from models.parallel.axis_rules import Layout

PACKAGES = ("jax", "flax", "numpy", "ml_dtypes", "libtpu", "nvidia", "tokamax", "qwix")
"""Name prefixes of packages with a part in tracing, compiling or running."""
ROOMS = ("models", "workers")
DEMO = "models/demo"
"""Checkpoints, and how they are made: no part of any program."""
SUFFIXES = (".py", ".json", ".toml")
FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "NVIDIA_TF32_OVERRIDE")
"""Variables that XLA and the libraries below it read."""
NO_MATTER = (
    *("cache", "dump", "log", "traceback", "coordinat", "distributed", "transfer", "profil"),
    *("platforms", "num_cpu_devices"),
)
"""Parts of the names of JAX's options that change no program: where it caches, what it logs; which
devices it looks for, since those that it uses stand in the key."""
CPU_LINES = ("model name", "flags", "Features", "CPU part")
"""Lines of /proc/cpuinfo: XLA compiles for the very processor that it runs on."""


def of_process(device: jax.Device) -> dict[str, Any]:
    """Software, flags, options, machine.

    Args:
        device: one of those that programs run on, which may be described and not there.
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
    """Return `name-version` of each package, by the names of their folders.

    Reading what is in these takes a second.
    """
    folders = (folder for place in sys.path for folder in Path(place or ".").glob("*.dist-info"))
    names = {folder.stem.lower() for folder in folders}
    return sorted(name for name in names if name.startswith(PACKAGES))


@cache
def code(root: Path) -> str:
    """Digest of the names and texts of all sources that trace."""
    found = sha256()
    for path in sorted(_sources(root)):
        found.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return found.hexdigest()


def _sources(root: Path) -> Iterable[Path]:
    files = (file for folder in ROOMS for file in (root / folder).rglob("*"))
    return (file for file in files if file.suffix in SUFFIXES and root / DEMO not in file.parents)


def options() -> dict[str, str]:
    """JAX's own settings."""
    return {
        name: str(value)
        for name, value in sorted(jax.config.values.items())
        if not any(word in name for word in NO_MATTER)
    }


def machine() -> str:
    """The processor, and how many of it XLA may use."""
    found = {f"{platform.machine()} {len(os.sched_getaffinity(0))}"}
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        lines = [platform.processor()]
    found.update(line for line in lines if line.startswith(CPU_LINES))
    return sha256("\n".join(sorted(found)).encode()).hexdigest()


def of_devices(devices: Iterable[jax.Device]) -> list[list[Any]]:
    """Return number, kind and place of each."""
    return [[one.id, one.device_kind, str(getattr(one, "coords", ""))] for one in devices]


def of_layout(layout: Layout) -> dict[str, Any]:
    """Return the devices in their order, what splits what, and the attention kernel by its name.

    Which kernel it is follows from the device, the model's dtype and the code.
    """
    return {
        "mesh": [[name, size] for name, size in layout.mesh.shape.items()],
        "devices": of_devices(layout.mesh.devices.flat),
        "table": {axis: list(names) for axis, names in layout.table.items()},
        "kernel": getattr(layout.kernel, "__qualname__", type(layout.kernel).__qualname__),
    }


def of_arguments(tree: PyTree) -> str:
    """Names, shapes, dtypes and places of arrays, which may be abstract: a digest."""
    found = sha256()
    for path, leaf in jax.tree.leaves_with_path(tree):
        place = plain(getattr(leaf, "sharding", None))
        described = (jax.tree_util.keystr(path), np.shape(leaf), str(leaf.dtype), str(place))
        found.update(repr(described).encode())
    found.update(str(jax.tree.structure(tree)).encode())
    return found.hexdigest()


def plain(place: Sharding | None) -> Sharding | None:
    """Return a sharding in one form: without dimensions at the end that nothing splits."""
    if not isinstance(place, NamedSharding):
        return place
    axes = list(place.spec)
    while axes and axes[-1] is None:
        axes.pop()
    return NamedSharding(place.mesh, PartitionSpec(*axes), memory_kind=place.memory_kind)


def of_model(config_digest: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the key of a model: its configs, and what the settings make of them.

    What weights hold is an argument of programs: of facts about it the key has the fingerprint.

    Args:
        config_digest: `ModelSpec.config_digest`.
        settings: of the model, as it was loaded.
    """
    return {"configs": config_digest, "settings": dict(settings)}
