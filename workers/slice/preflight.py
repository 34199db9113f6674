"""Preflight: whether this machine lets a worker use its accelerators, asked before JAX takes them.

JAX and libtpu say of a device file that they cannot open that there is no device, or nothing at
all. No JAX in here: it would take hold of the devices.
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
LEAST_SHM_BYTES = 2**30
"""Shared memory that is enough. Assumption: a container's own, 64 MiB, is what fails elsewhere."""
LEAST_MEMLOCK_BYTES = 64 * 2**30
"""Locked memory that is enough. Assumption: libtpu names no number, and recipes lift the limit."""
CAP_IPC_LOCK = 14
"""Bit of the capability for which RLIMIT_MEMLOCK is no limit. Source: linux/capability.h."""
GIVEN = ("TPU_ACCELERATOR_TYPE", "TPU_CHIPS_PER_HOST_BOUNDS", "TPU_WORKER_HOSTNAMES")
"""Variables of which GKE's device plugin sets some where a pod was given TPUs."""
NO_GPUS = ("", "-1", "NoDevFiles")
"""Values of `CUDA_VISIBLE_DEVICES` that hide all GPUs."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Accelerator:
    """Accelerators of one kind: how they show, and what their libraries want."""

    name: str
    platforms: tuple[str, ...]
    """Names in `JAX_PLATFORMS`."""
    library: str
    packages: tuple[str, ...]
    """Packages of which one lets JAX use them."""
    files: tuple[str, ...]
    """Device files below /dev, one a chip."""
    control: tuple[str, ...]
    """Further device files that every process needs."""
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
    ("nvidia[0-9]*", "dxg"),  # the latter in place of all of them on WSL 2
    ("nvidiactl", "nvidia-uvm"),
    "nvidia.com/gpu",
)
ACCELERATORS = (TPU, GPU)


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with a machine, as a sentence that says what to do."""

    text: str
    is_fatal: bool = False
    """Whether no worker can start with it."""


def check(pool: PoolSettings, devices: range | None, root: Path = ROOT) -> None:
    """Check this machine for a pool's worker; log what makes it slower.

    Args:
        devices: of this machine; None: all of them.

    Raises: ConfigError: it cannot start here; says every fault, and what to do.
    """
    kind = expected(os.environ, root)
    if kind is None:
        return
    found = [*faults(kind, wanted(pool, devices), root)]
    lines = "".join(f"\n  {fault.text}" for fault in found)
    if any(fault.is_fatal for fault in found):
        raise ConfigError(f"this machine is not fit for a worker with {kind.name}s:{lines}")
    if found:
        log.warning("this machine may slow down or stop a worker with %ss:%s", kind.name, lines)


def expected(environment: Mapping[str, str], root: Path = ROOT) -> Accelerator | None:
    """Return the kind of accelerator that JAX will look for here; None: it stays on the CPU."""
    platform = environment.get("JAX_PLATFORMS", "").split(",")[0]
    if platform:
        return next((kind for kind in ACCELERATORS if platform in kind.platforms), None)
    seen = next((kind for kind in ACCELERATORS if _is_seen(kind, environment, root)), None)
    return seen if seen and any(map(find_spec, seen.packages)) else None


def _is_seen(kind: Accelerator, environment: Mapping[str, str], root: Path) -> bool:
    """Return whether anything shows accelerators; VFIO alone has devices of any kind."""
    if kind is GPU:
        hidden = environment.get("CUDA_VISIBLE_DEVICES") in NO_GPUS
        return not hidden and bool(device_files(kind, root))
    return any(map(environment.get, GIVEN)) or _chip(root) in accelerators.TPUS.values()


def _chip(root: Path) -> str | None:
    return accelerators.chip(root / "sys" / "bus" / "pci" / "devices")


def wanted(pool: PoolSettings, devices: range | None) -> int:
    """Return how many devices of this host a worker needs at least.

    Raises: ConfigError: `mesh` is none.
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
    """Yield what is wrong with a machine for a worker with so many devices."""
    files = device_files(kind, root)
    control = [file for name in kind.control if (file := root / "dev" / name).exists()]
    yield from _unopenable(root / "dev", [*files, *control])
    yield from _too_few(kind, files, devices, root)
    if kind is TPU:
        yield from locked_memory(raised_memlock(), root)
    if kind is TPU or devices > 1:
        yield from shared_memory(kind, root)


def device_files(kind: Accelerator, root: Path = ROOT) -> list[Path]:
    """Return the device files of the accelerators that there are."""
    return sorted(file for name in kind.files for file in (root / "dev").glob(name))


def _too_few(kind: Accelerator, files: Sequence[Path], devices: int, root: Path) -> Iterator[Fault]:
    patterns = ", ".join(f"/dev/{name}" for name in kind.files)
    if not files:
        yield Fault(
            f"there is no device file of a {kind.name} ({patterns}): give the pod {kind.resource} "
            "in its resources, the container its devices, or set JAX_PLATFORMS=cpu",
            is_fatal=True,
        )
    elif (there := len(files) * _devices_a_chip(kind, root)) < devices:
        yield Fault(
            f"the worker wants {devices} devices, and there are {there} ({patterns}): give the pod "
            f"more {kind.resource} in its resources, or change the pool's mesh or devices",
            is_fatal=True,
        )


def _devices_a_chip(kind: Accelerator, root: Path) -> int:
    """Return how many devices JAX may see in a chip; of an unknown TPU two, the most there are."""
    if kind is GPU:
        return 1
    chip = _chip(root) or ""
    known = CHIPS.get(ALIASES.get(chip, chip))
    return round(1 / known.chips) if known else 2


def _unopenable(dev: Path, files: Sequence[Path]) -> Iterator[Fault]:
    """Yield one fault for all files of the same owner and mode."""
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
            f"{os.geteuid()} may not read and write there: have containerd give devices to the "
            "pod's user (device_ownership_from_security_context), or let the pool be root "
            "(components/tpu-root, docs/operations/gke.md)",
            is_fatal=True,
        )


def raised_memlock() -> int:
    """Raise this process's limit of locked memory as far as it may be, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))
    return hard


def locked_memory(limit_bytes: int, root: Path = ROOT) -> Iterator[Fault]:
    """Yield a fault where a limit of locked memory binds."""
    is_enough = limit_bytes == resource.RLIM_INFINITY or limit_bytes >= LEAST_MEMLOCK_BYTES
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
    kind: Accelerator, root: Path = ROOT, least: int = LEAST_SHM_BYTES
) -> Iterator[Fault]:
    """Yield a fault where shared memory is missing or small."""
    advice = "mount an emptyDir with medium Memory there, or --shm-size of Docker"
    folder = root / "dev" / "shm"
    if not os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
        yield Fault(f"nothing can be written to /dev/shm, which {kind.library} shares: {advice}")
        return
    there = os.statvfs(folder)
    if (size := there.f_frsize * there.f_blocks) < least:
        yield Fault(
            f"/dev/shm has {_mib(size)}, which is little for {kind.library}: give it "
            f"{_mib(least)} or more; {advice}"
        )


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"
