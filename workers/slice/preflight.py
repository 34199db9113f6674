"""Preflight check of this machine's accelerators for a worker, before JAX claims them.

JAX and libtpu report a device file without permissions as a missing device, or not at all. This
module does not import JAX, which would claim the devices.
"""

from __future__ import annotations

import logging
import os
import resource
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from service.settings.pools import PoolSettings
from service.settings.section import ConfigError
from workers.slice import devices as accelerators
from workers.slice.chips import CHIPS
from workers.slice.mesh_shape import MeshShape
from workers.slice.topology import ALIASES

ROOT = Path("/")
MIN_SHM_BYTES = 2**30
"""Sufficient shared memory. Assumption: a container's default of 64 MiB fails elsewhere."""
MIN_MEMLOCK_BYTES = 64 * 2**30
"""Sufficient locked memory. Assumption: libtpu states no number, and recipes lift the limit."""
CAP_IPC_LOCK = 14
"""Bit of the capability that overrides RLIMIT_MEMLOCK. Source: linux/capability.h."""
TPU_VARIABLES = ("TPU_ACCELERATOR_TYPE", "TPU_CHIPS_PER_HOST_BOUNDS", "TPU_WORKER_HOSTNAMES")
"""Variables that GKE's device plugin may set in a pod with TPUs."""
NO_GPUS = ("", "-1", "NoDevFiles")
"""Values of `CUDA_VISIBLE_DEVICES` that hide all GPUs."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Accelerator:
    """Kind of accelerator: its device files, and the requirements of its libraries."""

    name: str
    platforms: tuple[str, ...]
    """Names in `JAX_PLATFORMS`."""
    library: str
    packages: tuple[str, ...]
    """Packages, any of which lets JAX use it."""
    files: tuple[str, ...]
    """Device files below /dev, one per chip."""
    control: tuple[str, ...]
    """Other device files that every process needs."""
    resource: str
    """Name among a pod's resources."""


TPU = Accelerator(
    "TPU",
    ("tpu",),
    "libtpu",
    ("libtpu",),
    ("accel[0-9]*", "vfio/[0-9]*"),
    ("vfio/vfio",),
    "google.com/tpu",
)
GPU = Accelerator(
    "GPU",
    ("cuda", "gpu"),
    "NCCL",
    ("jax_cuda13_plugin", "jax_cuda12_plugin"),
    ("nvidia[0-9]*", "dxg"),  # WSL 2 has only dxg
    ("nvidiactl", "nvidia-uvm"),
    "nvidia.com/gpu",
)
ACCELERATORS = (TPU, GPU)


@dataclass(frozen=True)
class Fault:
    """Problem of a machine that prevents or slows down a worker, as a sentence with the remedy."""

    text: str
    is_fatal: bool = False
    """Whether it prevents a worker's start."""


def check(pool: PoolSettings, devices: range | None, root: Path = ROOT) -> None:
    """Check this machine for a pool's worker; log problems that only slow it down.

    Args:
        devices: devices of this machine to use; None: all.

    Raises: ConfigError: the worker cannot start; states every problem and its remedy.
    """
    kind = expected(os.environ, root)
    if kind is None:
        return
    problems = [*faults(kind, required_devices(pool, devices), root)]
    lines = "".join(f"\n  {fault.text}" for fault in problems)
    if any(fault.is_fatal for fault in problems):
        raise ConfigError(f"this machine cannot run a worker with {kind.name}s:{lines}")
    if problems:
        log.warning("this machine may slow down or stop a worker with %ss:%s", kind.name, lines)


def expected(environment: Mapping[str, str], root: Path = ROOT) -> Accelerator | None:
    """Return the kind of accelerator that JAX will use; None: it stays on the CPU."""
    platform = environment.get("JAX_PLATFORMS", "").split(",")[0]
    if platform:
        return next((kind for kind in ACCELERATORS if platform in kind.platforms), None)
    seen = next((kind for kind in ACCELERATORS if _is_visible(kind, environment, root)), None)
    return seen if seen and any(map(find_spec, seen.packages)) else None


def _is_visible(kind: Accelerator, environment: Mapping[str, str], root: Path) -> bool:
    """Return whether accelerators are detected; VFIO files alone may be other devices."""
    if kind is GPU:
        hidden = environment.get("CUDA_VISIBLE_DEVICES") in NO_GPUS
        return not hidden and bool(device_files(kind, root))
    return any(map(environment.get, TPU_VARIABLES)) or _chip(root) in accelerators.TPUS.values()


def _chip(root: Path) -> str | None:
    return accelerators.chip(root / "sys" / "bus" / "pci" / "devices")


def required_devices(pool: PoolSettings, devices: range | None) -> int:
    """Return the minimum number of this host's devices that a worker needs.

    Raises: ConfigError: `mesh` is invalid.
    """
    if devices is not None:
        return devices.stop
    if pool.devices or pool.mesh == "auto":
        return pool.devices or 1
    try:
        shape = MeshShape(pool.mesh.ici, pool.mesh.dcn, pool.mesh.ring)
    except ValueError as error:
        raise ConfigError(f"mesh: {error}") from None
    return shape.devices // pool.hosts.count if shape.is_whole else 1


def faults(kind: Accelerator, devices: int, root: Path = ROOT) -> Iterator[Fault]:
    """Yield the problems of a machine for a worker with this many devices."""
    files = device_files(kind, root)
    control = [file for name in kind.control if (file := root / "dev" / name).exists()]
    yield from _unopenable(root / "dev", [*files, *control])
    yield from _too_few(kind, files, devices, root)
    if kind is TPU:
        yield from locked_memory(raised_memlock(), root)
    if kind is TPU or devices > 1:
        yield from shared_memory(kind, root)


def device_files(kind: Accelerator, root: Path = ROOT) -> list[Path]:
    """Return the existing device files of an accelerator."""
    return sorted(file for name in kind.files for file in (root / "dev").glob(name))


def _too_few(kind: Accelerator, files: Sequence[Path], devices: int, root: Path) -> Iterator[Fault]:
    patterns = ", ".join(f"/dev/{name}" for name in kind.files)
    if not files:
        yield Fault(
            f"there is no device file of a {kind.name} ({patterns}): give the pod {kind.resource} "
            "in its resources, the container its devices, or set JAX_PLATFORMS=cpu",
            is_fatal=True,
        )
    elif (count := len(files) * _devices_a_chip(kind, root)) < devices:
        yield Fault(
            f"the worker needs {devices} devices, and there are {count} ({patterns}): give the pod "
            f"more {kind.resource} in its resources, or change the pool's mesh or devices",
            is_fatal=True,
        )


def _devices_a_chip(kind: Accelerator, root: Path) -> int:
    """Return the maximum number of JAX devices per chip; 2 for an unknown TPU."""
    if kind is GPU:
        return 1
    chip = _chip(root) or ""
    chip_data = CHIPS.get(ALIASES.get(chip, chip))
    return round(1 / chip_data.chips) if chip_data else 2


def _unopenable(dev: Path, files: Sequence[Path]) -> Iterator[Fault]:
    """Yield one problem for all device files with the same owner and mode that cannot be opened."""
    shut: dict[str, list[Path]] = {}
    for file in files:
        if not os.access(file, os.R_OK | os.W_OK, effective_ids=True):
            status = file.stat()
            owner = f"user {status.st_uid} and group {status.st_gid}"
            shut.setdefault(f"{owner} with mode {status.st_mode & 0o777:04o}", []).append(file)
    for owner, those in shut.items():
        others = f" and {len(those) - 1} more" if those[1:] else ""
        yield Fault(
            f"/dev/{those[0].relative_to(dev)}{others} belong to {owner}, and user "
            f"{os.geteuid()} cannot read and write them: have containerd give devices to the "
            "pod's user (device_ownership_from_security_context), or run the pool as root "
            "(components/tpu-root, docs/operations/gke.md)",
            is_fatal=True,
        )


def raised_memlock() -> int:
    """Raise this process's limit of locked memory to its maximum, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))
    return hard


def locked_memory(limit_bytes: int, root: Path = ROOT) -> Iterator[Fault]:
    """Yield a problem if the limit of locked memory is too low for accelerators."""
    is_enough = limit_bytes == resource.RLIM_INFINITY or limit_bytes >= MIN_MEMLOCK_BYTES
    if not (is_enough or _may_lock_all(root)):
        yield Fault(
            f"this process may lock {_mib(limit_bytes)} of memory (RLIMIT_MEMLOCK), and libtpu "
            "locks more: lift the limit of containers (LimitMEMLOCK=infinity of containerd's unit, "
            "--ulimit memlock=-1 of Docker)"
        )


def _may_lock_all(root: Path) -> bool:
    try:
        lines = (root / "proc" / "self" / "status").read_text().splitlines()
    except OSError:
        return False
    held = [line.split()[1] for line in lines if line.startswith("CapEff:")]
    return bool(held) and bool(int(held[0], 16) >> CAP_IPC_LOCK & 1)


def shared_memory(
    kind: Accelerator, root: Path = ROOT, least: int = MIN_SHM_BYTES
) -> Iterator[Fault]:
    """Yield a problem if shared memory is missing or small."""
    advice = "mount an emptyDir with medium Memory there, or --shm-size of Docker"
    folder = root / "dev" / "shm"
    if not os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
        yield Fault(f"nothing can be written to /dev/shm, which {kind.library} shares: {advice}")
        return
    filesystem = os.statvfs(folder)
    if (size := filesystem.f_frsize * filesystem.f_blocks) < least:
        yield Fault(
            f"/dev/shm has {_mib(size)}, which is little for {kind.library}: give it "
            f"{_mib(least)} or more; {advice}"
        )


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"
