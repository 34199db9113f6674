"""The images' locks match pyproject.toml, are complete, and lack packages that an image must not
have."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy.docker.dockerfile import FOLDER
from tests.deploy.docker.locks import Pin, faults, project_requirements, read
from tests.test_arrows import HEAVY
from tools.image_locks import LOCKS, PYTHON, build_requirements, lock_file

LINUX = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "extra": ""}
IMAGE = {**LINUX, "python_version": PYTHON, "python_full_version": f"{PYTHON}.0"}
"""Marker environment of the image. The patch level is the lowest; an extra package does no harm."""


def pins_of(name: str) -> dict[str, Pin]:
    return read(lock_file(name).read_text("utf-8"))


def wanted_of(name: str) -> list[Requirement]:
    extras, _ = LOCKS[name]
    return list(project_requirements(extras) if extras else map(Requirement, build_requirements()))


def test_every_lock_is_known() -> None:
    assert {path.stem for path in FOLDER.glob("*.lock")} == set(LOCKS)


@pytest.mark.parametrize("name", LOCKS)
def test_lock_matches_pyproject(name: str) -> None:
    assert faults(pins_of(name), wanted_of(name)) == [], "run `make locks`"


def test_mismatched_lock_is_reported() -> None:
    pins, requirements = pins_of("frontend"), wanted_of("frontend")
    assert faults(pins, [*requirements, Requirement("torch")]) == ["torch is missing"]
    assert faults(pins, requirements[1:]) == ["fastapi is not asked for any more"]
    newer = [
        Requirement("redis[hiredis]>=99") if each.name == "redis" else each for each in requirements
    ]
    assert len(faults(pins, newer)) == 1
    text = lock_file("frontend").read_text("utf-8")
    assert faults(read(text.replace("sha256", "md5")), requirements)
    with pytest.raises(ValueError, match="no pin"):
        read(text.replace("uvicorn==", "uvicorn>="))


@pytest.mark.parametrize("name", LOCKS)
def test_locked_dependencies_are_complete(name: str) -> None:
    """Checked for packages installed here in the locked version, whose metadata is available. `pip
    check` covers the rest when images are built."""
    pins = pins_of(name)
    for pin in pins.values():
        for need in _needs(pin):
            dependency = pins.get(canonicalize_name(need.name))
            assert dependency, f"{pin.name} needs {need}"
            assert need.specifier.contains(dependency.version), f"{pin.name} needs {need}"


def _needs(pin: Pin) -> list[Requirement]:
    try:
        installed = distribution(pin.name)
    except PackageNotFoundError:
        return []
    if installed.version != str(pin.version):
        return []
    needs = map(Requirement, installed.requires or ())
    return [need for need in needs if need.marker is None or need.marker.evaluate(IMAGE)]


def test_front_end_and_pools_are_of_the_same_versions() -> None:
    versions: dict[str, set[str]] = {}
    for name in LOCKS:
        for pin in pins_of(name).values():
            versions.setdefault(pin.name, set()).add(str(pin.version))
    assert {name: versions_ for name, versions_ in versions.items() if len(versions_) > 1} == {}


def test_a_front_end_has_no_jax() -> None:
    assert pins_of("frontend").keys().isdisjoint({*HEAVY, "scipy"})


@pytest.mark.parametrize(
    ("name", "own"),
    [("worker-cpu", "jaxlib"), ("worker-cuda", "jax-cuda12-plugin"), ("worker-tpu", "libtpu")],
)
def test_each_worker_has_its_accelerators_packages(name: str, own: str) -> None:
    others = {"jax-cuda12-plugin", "libtpu"} - {own}
    assert own in pins_of(name)
    assert pins_of(name).keys().isdisjoint(others)
