"""Division of this machine's devices among pools, before JAX starts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from service.settings.pools import PoolSettings
from service.settings.section import ConfigError
from service.settings.settings import Settings
from workers.loading.backends import backend_of
from workers.slice.mesh_shape import MeshShape

ACCELERATORS = (
    ("nvidia[0-9]*", "CUDA_VISIBLE_DEVICES"),
    ("accel[0-9]*", "TPU_VISIBLE_CHIPS"),
    ("vfio/[0-9]*", "TPU_VISIBLE_CHIPS"),
)
"""Device files, and the variable with which an operator selects some of them."""


def visible_devices(environment: Mapping[str, str], dev: Path = Path("/dev")) -> int:
    """Return the number of this machine's accelerators that processes may use; 1 for CPUs."""
    if environment.get("JAX_PLATFORMS") == "cpu":
        return 1
    for kind, variable in ACCELERATORS:
        if variable in environment:
            count = len([name for name in environment[variable].split(",") if name])
        else:
            count = len(list(dev.glob(kind)))
        if count:
            return count
    return 1


def wanted(name: str, pool: PoolSettings) -> int | None:
    """Return the number of devices of each of a pool's slices; None: an even share.

    Raises: ConfigError: `mesh` is invalid, or a slice spans several machines.
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


def one_device_each(settings: Settings) -> dict[str, PoolSettings]:
    """Return the pools, with one device for each slice of those that diffusers serves."""
    pools = dict(settings.pools)
    for name, pool in pools.items():
        model = settings.models.get(pool.model)
        if pool.devices is None and model is not None and backend_of(model) == "diffusers":
            pools[name] = pool.model_copy(update={"devices": 1})
    return pools


def with_own_page(settings: Settings, name: str, index: int) -> Settings:
    """Return the settings of one slice of a pool, whose metrics port is offset by its index."""
    pool = settings.pools[name]
    if not (pool.metrics_port and index):
        return settings
    shifted = pool.model_copy(update={"metrics_port": pool.metrics_port + index})
    return settings.model_copy(update={"pools": {**settings.pools, name: shifted}})


def deal(
    pools: Mapping[str, PoolSettings], devices: int, virtual: bool = False
) -> dict[str, list[range]]:
    """Return device ranges for the slices of each pool.

    Pools with a fixed number get it, and the others share the rest evenly. If too few devices are
    left, slices overlap and take turns.

    Args:
        virtual: whether each process has its own virtual devices, so any number of slices fits.

    Raises: ConfigError: too few devices; states the numbers.
    """
    sizes = {name: wanted(name, pool) for name, pool in pools.items()}
    fixed = sum((sizes[name] or 0) * pool.count for name, pool in pools.items())
    widest = max((size for size in sizes.values() if size), default=0)
    if (widest if virtual else fixed) > devices:
        raise ConfigError(_too_many(pools, sizes, devices))
    sharing = sum(pool.count for name, pool in pools.items() if sizes[name] is None)
    share = max(1, (devices - fixed) // max(1, sharing))
    dealt: dict[str, list[range]] = {name: [] for name in pools}
    start = 0
    for name, pool in pools.items():
        size = sizes[name] or share
        for _ in range(pool.count):
            start = 0 if start + size > devices else start
            dealt[name].append(range(start, start + size))
            start += size
    return dealt


def _too_many(
    pools: Mapping[str, PoolSettings], sizes: Mapping[str, int | None], devices: int
) -> str:
    sized = {name: (pool.count, sizes[name]) for name, pool in pools.items() if sizes[name]}
    parts = " + ".join(f"{name} {count} x {size}" for name, (count, size) in sized.items())
    total = sum(count * (size or 0) for count, size in sized.values())
    return (
        f"pools: {parts} is {total} devices, but this machine has {devices}; ask for fewer, or "
        "give a machine without accelerators more with --host-devices"
    )
