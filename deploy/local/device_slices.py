"""Device slices of each pool on this machine: side by side, before JAX sees any."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from service.settings.pools import PoolSettings
from service.settings.section import ConfigError
from service.settings.settings import Settings
from workers.slice.mesh_shape import MeshShape

ACCELERATORS = (
    ("nvidia[0-9]*", "CUDA_VISIBLE_DEVICES"),
    ("accel[0-9]*", "TPU_VISIBLE_CHIPS"),
    ("vfio/[0-9]*", "TPU_VISIBLE_CHIPS"),
)
"""Device files, and the variable by which an operator shows some of them."""


def visible_devices(environment: Mapping[str, str], dev: Path = Path("/dev")) -> int:
    """Accelerators of this machine that its processes may use; without any, its one CPU device."""
    if environment.get("JAX_PLATFORMS") == "cpu":
        return 1
    for kind, variable in ACCELERATORS:
        if variable in environment:
            found = len([name for name in environment[variable].split(",") if name])
        else:
            found = len(list(dev.glob(kind)))
        if found:
            return found
    return 1


def wanted(name: str, pool: PoolSettings) -> int | None:
    """Devices of one of the pool's slices; None: its share.

    Raises: ConfigError: `mesh` is none, or the slice lies on several machines.
    """
    if pool.hosts.count > 1:
        raise ConfigError(
            f"pools.{name}.hosts: a slice of {pool.hosts.count} hosts is more than this machine; "
            "run `atelier serve` once and `atelier worker` on each of them"
        )
    if pool.mesh == "auto":
        return pool.devices
    try:
        shape = MeshShape(pool.mesh.ici, pool.mesh.dcn, pool.mesh.ring)
    except ValueError as error:
        raise ConfigError(f"pools.{name}.mesh: {error}") from None
    return pool.devices or (shape.devices if shape.is_whole else None)


def with_own_page(settings: Settings, name: str, index: int) -> Settings:
    """Return settings for one of a pool's slices: its metrics port is so many further on."""
    pool = settings.pools[name]
    if not (pool.metrics_port and index):
        return settings
    own = pool.model_copy(update={"metrics_port": pool.metrics_port + index})
    return settings.model_copy(update={"pools": {**settings.pools, name: own}})


def deal(
    pools: Mapping[str, PoolSettings], devices: int, virtual: bool = False
) -> dict[str, list[range]]:
    """Return a slice of this machine's devices for each pool.

    Those that say how many they want get them, the others share the rest evenly. Where not one each
    is left, they take turns on the devices.

    Args:
        virtual: each pool's process has devices of its own, so any number of slices fits.

    Raises: ConfigError: there are not so many devices; says the numbers.
    """
    asked = {name: wanted(name, pool) for name, pool in pools.items()}
    fixed = sum((asked[name] or 0) * pool.count for name, pool in pools.items())
    widest = max((size for size in asked.values() if size), default=0)
    if (widest if virtual else fixed) > devices:
        raise ConfigError(_too_many(pools, asked, devices))
    sharing = sum(pool.count for name, pool in pools.items() if asked[name] is None)
    share = max(1, (devices - fixed) // max(1, sharing))
    dealt: dict[str, list[range]] = {name: [] for name in pools}
    start = 0
    for name, pool in pools.items():
        size = asked[name] or share
        for _ in range(pool.count):
            start = 0 if start + size > devices else start
            dealt[name].append(range(start, start + size))
            start += size
    return dealt


def _too_many(
    pools: Mapping[str, PoolSettings], asked: Mapping[str, int | None], devices: int
) -> str:
    sized = {name: (pool.count, asked[name]) for name, pool in pools.items() if asked[name]}
    parts = " + ".join(f"{name} {count} x {size}" for name, (count, size) in sized.items())
    total = sum(count * (size or 0) for count, size in sized.values())
    return (
        f"pools: {parts} is {total} devices, but this machine has {devices}; ask for fewer, or "
        "give a machine without accelerators more with --host-devices"
    )
