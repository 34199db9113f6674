"""Checks of a machine before JAX starts, on trees of real files and modes."""

from __future__ import annotations

import logging
import os
import resource
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

import pytest

from deploy.exit_codes import EXIT_CONFIG
from models.checkpoint.folder import CheckpointError
from service.settings.pools import HostsSettings, MeshSettings, PoolSettings
from service.settings.section import ConfigError
from service.settings.settings import Settings
from workers.loading.explain import explain
from workers.slice import preflight
from workers.slice.preflight import (
    GPU,
    TPU,
    Accelerator,
    expected,
    faults,
    locked_memory,
    shared_memory,
)

REPOSITORY = Path(__file__).parents[3]
USER = 10001
"""User of the container images."""
POOL = PoolSettings(model="flux", mesh=MeshSettings(ici={"context": 4, "cfg": 2}))


@pytest.fixture
def root() -> Iterator[Path]:
    """Create a machine whose folders any user may list, like /dev."""
    folder = Path(mkdtemp())
    folder.chmod(0o755)
    (folder / "dev" / "shm").mkdir(parents=True)
    (folder / "dev" / "shm").chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


@contextmanager
def as_user() -> Iterator[None]:
    """Act as a user who owns no device. Without root, files of mode 0 are used."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(USER)
    try:
        yield
    finally:
        os.seteuid(0)


def put(root: Path, *names: str, mode: int = 0o666) -> None:
    for name in names:
        file = root / "dev" / name
        file.parent.mkdir(exist_ok=True)
        file.touch()
        file.chmod(mode)


def put_chip(root: Path, device: str) -> None:
    """Add a TPU to the machine's PCI bus."""
    folder = root / "sys" / "bus" / "pci" / "devices" / "0000:00:05.0"
    folder.mkdir(parents=True)
    (folder / "vendor").write_text("0x1ae0\n")
    (folder / "device").write_text(f"{device}\n")


def fatal(kind: Accelerator, devices: int, root: Path) -> list[str]:
    return [fault.text for fault in faults(kind, devices, root) if fault.is_fatal]


VFIO = tuple(f"vfio/{number}" for number in range(8))


def test_device_files_of_another_user_are_one_fault(root: Path) -> None:
    put(root, *VFIO, "vfio/vfio", mode=0o600 if os.geteuid() == 0 else 0)
    with as_user():
        (fault,) = fatal(TPU, 8, root)
    owner = f"user {os.geteuid()} and group {os.getegid()} with mode 0"
    assert fault.startswith(f"/dev/vfio/0 and 8 more belong to {owner}")
    assert "device_ownership_from_security_context" in fault
    put(root, *VFIO, "vfio/vfio", mode=0o666)
    with as_user():
        assert fatal(TPU, 8, root) == []


def test_control_file_is_checked_but_not_counted(root: Path) -> None:
    put(root, "accel0")
    put(root, "vfio/vfio", mode=0o600 if os.geteuid() == 0 else 0)
    with as_user():
        (fault,) = fatal(TPU, 1, root)
    assert fault.startswith("/dev/vfio/vfio belong")
    assert len(preflight.device_files(TPU, root)) == 1


@pytest.mark.parametrize(
    ("kind", "names", "devices", "message"),
    [
        (TPU, (), 8, "there is no device file of a TPU (/dev/accel[0-9]*, /dev/vfio/[0-9]*)"),
        (TPU, VFIO[:4], 9, "needs 9 devices, and there are 8"),
        (GPU, ("nvidia0", "nvidiactl"), 8, "needs 8 devices, and there are 1"),
        (GPU, ("nvidiactl",), 1, "there is no device file of a GPU"),
        (GPU, ("nvidia0", "nvidia1"), 2, ""),
        (GPU, ("dxg",), 1, ""),
    ],
)
def test_expected_number_of_chips_is_present(
    root: Path, kind: Accelerator, names: tuple[str, ...], devices: int, message: str
) -> None:
    put(root, *names)
    failures = fatal(kind, devices, root)
    assert [message in fault for fault in failures] == ([True] if message else [])


@pytest.mark.parametrize(("device", "enough"), [("0x006f", False), ("0x0076", True)])
def test_some_chips_are_two_devices(root: Path, device: str, enough: bool) -> None:
    put_chip(root, device)
    put(root, *VFIO[:4])
    assert (fatal(TPU, 8, root) == []) is enough


def test_locked_memory_is_a_limit_but_not_for_all(root: Path) -> None:
    (fault,) = locked_memory(8 * 2**20, root)
    assert fault.text.startswith("this process may lock 8 MiB")
    assert not fault.is_fatal
    assert not [*locked_memory(resource.RLIM_INFINITY, root)]
    (root / "proc" / "self").mkdir(parents=True)
    status = root / "proc" / "self" / "status"
    status.write_text("Name:\tpython\nCapEff:\t0000000000004000\n")  # IPC_LOCK alone
    assert not [*locked_memory(8 * 2**20, root)]
    status.write_text("Name:\tpython\nCapEff:\t00000000a80425fb\n")  # what containers have
    assert len([*locked_memory(8 * 2**20, root)]) == 1


def test_a_soft_limit_of_locked_memory_is_raised() -> None:
    before = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (4096, before[1]))
    try:
        assert preflight.raised_memlock() == before[1]
        assert resource.getrlimit(resource.RLIMIT_MEMLOCK) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, before)


def test_shared_memory_is_large_enough(root: Path) -> None:
    assert not [*shared_memory(TPU, root, least=1)]
    (small,) = shared_memory(TPU, root, least=2**70)
    assert "is little for libtpu" in small.text
    assert not small.is_fatal
    (root / "dev" / "shm").rmdir()
    (missing,) = shared_memory(GPU, root)
    assert missing.text.startswith("nothing can be written to /dev/shm, which NCCL shares")


def test_single_gpu_needs_no_shared_memory(root: Path) -> None:
    (root / "dev" / "shm").rmdir()
    put(root, "nvidia0", "nvidia1")
    assert not [*faults(GPU, 1, root)]
    assert len([*faults(GPU, 2, root)]) == 1


@pytest.mark.parametrize(
    ("environment", "kind"),
    [
        ({"JAX_PLATFORMS": "cpu", "TPU_WORKER_HOSTNAMES": "a"}, None),
        ({"JAX_PLATFORMS": "tpu"}, TPU),
        ({"JAX_PLATFORMS": "tpu,cpu"}, TPU),
        ({"JAX_PLATFORMS": "cuda"}, GPU),
        ({"TPU_WORKER_HOSTNAMES": "a,b"}, TPU),
        ({}, None),
    ],
)
def test_expected_accelerators_are_detected(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    kind: Accelerator | None,
) -> None:
    put(root, *VFIO)  # a virtual machine may have these for any device
    monkeypatch.setattr(preflight, "find_spec", lambda name: name == "libtpu" or None)
    assert expected(environment, root) is kind


def test_without_its_packages_jax_looks_for_no_accelerator(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(root, "nvidia0")
    packages = {"jax_cuda12_plugin"}
    monkeypatch.setattr(preflight, "find_spec", lambda name: name in packages or None)
    assert expected({}, root) is GPU
    assert expected({"CUDA_VISIBLE_DEVICES": ""}, root) is None
    packages.clear()
    assert expected({}, root) is None
    put_chip(root, "0x006f")
    assert expected({}, root) is None
    packages.add("libtpu")
    assert expected({}, root) is TPU


@pytest.mark.parametrize(
    ("pool", "devices", "required_devices"),
    [
        (POOL, None, 8),
        (POOL, range(4, 6), 6),
        (PoolSettings(model="a"), None, 1),
        (PoolSettings(model="a", devices=2), None, 2),
        (PoolSettings(model="a", mesh=MeshSettings(ici={"context": -1})), None, 1),
        (
            PoolSettings(
                model="a",
                mesh=MeshSettings(ici={"cfg": 2, "context": 2}, dcn={"context": 4}),
                hosts=HostsSettings(count=4),
            ),
            None,
            4,
        ),
    ],
)
def test_devices_that_a_worker_requires(
    pool: PoolSettings, devices: range | None, required_devices: int
) -> None:
    assert preflight.required_devices(pool, devices) == required_devices


def test_all_faults_are_reported_at_once(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "tpu")
    monkeypatch.setattr(preflight, "raised_memlock", lambda: 2**16)
    (root / "dev" / "shm").rmdir()
    with pytest.raises(ConfigError) as refused:
        preflight.check(POOL, None, root)
    first, *lines = str(refused.value).splitlines()
    assert first == "this machine cannot run a worker with TPUs:"
    pairs = zip(("no device", "may lock", "/dev/shm"), lines, strict=True)
    assert all(words in line for words, line in pairs)
    put(root, *VFIO)
    with caplog.at_level(logging.WARNING):
        preflight.check(POOL, None, root)
    (record,) = caplog.records
    assert len(record.getMessage().splitlines()) == 3


SETTINGS = """
[models.flux]
source = "/absent"

[pools.flux]
model = "flux"
"""


@pytest.mark.skipif(any(Path("/dev").glob("accel[0-9]*")), reason="there are TPUs")
@pytest.mark.skipif(any(Path("/dev/vfio").glob("[0-9]*")), reason="there may be TPUs")
def test_preflight_failure_exits_before_reading_weights(tmp_path: Path) -> None:
    config = tmp_path / "atelier.toml"
    config.write_text(SETTINGS)
    ended = subprocess.run(
        [sys.executable, "-m", "atelier", "worker", "--pool", "flux", "--explain"],
        cwd=REPOSITORY,
        env={**os.environ, "ATELIER_CONFIG": str(config), "JAX_PLATFORMS": "tpu"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == EXIT_CONFIG
    assert "there is no device file of a TPU" in ended.stderr
    assert "/absent" not in ended.stderr


def test_cpu_worker_skips_the_preflight(monkeypatch: pytest.MonkeyPatch) -> None:
    """The start gets as far as the weights."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "localhost")
    settings = Settings(**tomllib.loads(SETTINGS))
    with pytest.raises(CheckpointError, match="/absent"):
        explain(settings, "flux")
