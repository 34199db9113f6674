"""The lock of `make install` matches pyproject.toml, is complete and has hashes."""

from __future__ import annotations

import copy
import os
import re
import subprocess
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy.docker.locks import project_requirements, read
from tests.test_arrows import HEAVY, ROOT
from tools.image_locks import LOCKS, PYTHON, lock_file
from tools.locks import EXTRAS, MACHINES, PROJECT, PYTHONS, digest, merged, written
from tools.packages import BUILD, CORE, LOCK, Entry, chosen, entries, main

TEXT = LOCK.read_text("utf-8")
ENTRIES = tuple(entries(TEXT))
UNLOCKED = "torch"
"""The Makefile chooses its build."""
WHERE = [
    (extra, python, machine)
    for extra in EXTRAS
    for python in PYTHONS
    for machine in MACHINES[extra]
]


def environment(python: str, machine: str) -> dict[str, str]:
    """Marker environment of a Python version and machine."""
    linux = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "extra": ""}
    version = {"python_version": python, "python_full_version": f"{python}.4"}
    return {**linux, **version, "platform_machine": machine}


def installed(extra: str, python: str, machine: str) -> dict[str, Requirement]:
    """Packages that pip installs from the lock, by canonical name."""
    markers = environment(python, machine)
    pins = [Requirement(entry.pin) for entry in chosen(ENTRIES, [extra])]
    applicable = [pin for pin in pins if pin.marker is None or pin.marker.evaluate(markers)]
    versions = {(canonicalize_name(pin.name), str(pin.specifier)) for pin in applicable}
    by_name = {canonicalize_name(pin.name): pin for pin in applicable}
    assert len(versions) == len(by_name), "two versions of one package"
    return by_name


def version_of(pin: Requirement) -> str:
    (specifier,) = pin.specifier
    assert specifier.operator == "=="
    return specifier.version


def test_the_lock_is_of_this_pyproject() -> None:
    assert f"# What pyproject.toml asked for: {digest(PROJECT)}\n" in TEXT, "run `make locks`"


@pytest.mark.parametrize("table", ["dependencies", "optional-dependencies"])
def test_another_pyproject_is_noticed(table: str) -> None:
    other = copy.deepcopy(PROJECT)
    lines = other["project"][table]
    (lines if table == "dependencies" else lines["load"]).append("left-pad>=1")
    assert digest(other) != digest(PROJECT)


@pytest.mark.parametrize(("extra", "python", "machine"), WHERE)
def test_all_requirements_are_locked(extra: str, python: str, machine: str) -> None:
    pins, markers = installed(extra, python, machine), environment(python, machine)
    for requirement in project_requirements((extra,)):
        if requirement.name == UNLOCKED or (
            requirement.marker and not requirement.marker.evaluate(markers)
        ):
            continue
        assert requirement.specifier.contains(version_of(pins[canonicalize_name(requirement.name)]))


def test_every_file_has_a_hash() -> None:
    assert ENTRIES
    for entry in ENTRIES:
        assert entry.hashes and all(re.fullmatch("sha256:[0-9a-f]{64}", h) for h in entry.hashes)
    assert "://" not in TEXT


def needs(name: str, version: str, here: dict[str, str]) -> Iterator[Requirement]:
    """Requirements by the metadata of the package installed here, if it has that version."""
    try:
        installed_package = distribution(name)
    except PackageNotFoundError:
        return
    for need in map(
        Requirement,
        installed_package.requires or () if installed_package.version == version else (),
    ):
        if need.marker is None or need.marker.evaluate(here):
            yield need


@pytest.mark.parametrize("python", PYTHONS)
def test_locked_dependencies_are_complete(python: str) -> None:
    pins, markers = installed("test", python, "x86_64"), environment(python, "x86_64")
    for name, pin in pins.items():
        for need in needs(name, version_of(pin), markers):
            assert need.name == UNLOCKED or need.specifier.contains(
                version_of(pins[canonicalize_name(need.name)])
            ), f"{name} needs {need}"


@pytest.mark.parametrize(
    ("extra", "own"), [("cpu", "jaxlib"), ("cuda", "jax-cuda12-plugin"), ("tpu", "libtpu")]
)
def test_an_accelerator_has_its_own_packages(extra: str, own: str) -> None:
    pins = installed(extra, PYTHON, "x86_64")
    assert own in pins and pins.keys().isdisjoint({"jax-cuda12-plugin", "libtpu"} - {own})


def test_no_jax_without_an_extra() -> None:
    names = {Requirement(entry.pin).name for entry in chosen(ENTRIES, [])}
    assert "fastapi" in names and "setuptools" in names
    assert names.isdisjoint(HEAVY)


@pytest.mark.parametrize("name", LOCKS)
def test_images_have_the_same_versions(name: str) -> None:
    extras, (machine, *_) = LOCKS[name]
    pins = {
        key: pin
        for extra in extras or (BUILD,)
        if extra in {*EXTRAS, BUILD}
        for key, pin in (installed(extra, PYTHON, machine)).items()
    }
    locked = read(lock_file(name).read_text("utf-8"))
    assert {key: str(pin.version) for key, pin in locked.items()} == {
        key: version_of(pins[key]) for key in locked
    }


def test_pip_gets_the_packages_of_an_extra(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tpu"]) == 0
    assert capsys.readouterr().out.count("--hash=") == sum(
        len(entry.hashes) for entry in chosen(ENTRIES, ["tpu"])
    )
    assert main(["nothing"]) == 1
    assert "the lock has no nothing; run `make locks`" in capsys.readouterr().err


def test_lock_round_trips() -> None:
    parts = {
        CORE: [Entry("a==1", ("sha256:0", "sha256:1"), ())],
        "cpu": [Entry("b==2 ; python_full_version < '3.12'", ("sha256:2",), ())],
        BUILD: [Entry("a==1", ("sha256:0", "sha256:1"), ())],
    }
    first, second = entries(written(merged(parts)))
    assert first == Entry("a==1", ("sha256:0", "sha256:1"), (BUILD, CORE))
    assert second.extras == ("cpu",) and second.pin.endswith("'3.12'")
    with pytest.raises(ValueError, match="not a line of a lock"):
        list(entries("a>=1\n"))


def made(folder: Path, *arguments: str) -> str:
    """Commands that make would run in a fresh environment."""
    command = ["make", "--dry-run", "test", f"VENV={folder}", *arguments]
    plain = {"PATH": os.environ["PATH"]}  # without the variables of the test run
    return subprocess.run(
        command, cwd=ROOT, env=plain, capture_output=True, text=True, check=True
    ).stdout


def test_install_uses_the_lock_or_the_newest(tmp_path: Path) -> None:
    locked, newest = made(tmp_path), made(tmp_path, "NEWEST=1")
    assert locked.count("uv pip install") == 2, "twice: what runs, and what tests need"
    assert locked.count("--no-deps --require-hashes --only-binary :all:") == 4, "by uv, else pip"
    assert locked.count("--no-deps --no-build-isolation --editable .") == 2
    assert "tools.packages" not in newest and newest.count("--upgrade ") == 2
    assert "tools.packages cuda" in made(tmp_path, "ACCELERATOR=cuda")


def test_an_environment_of_another_python_or_project_is_made_again(tmp_path: Path) -> None:
    project, python, venv = (tmp_path / name for name in ("pyproject.toml", "python", "venv"))
    command = ["make", "--file", ROOT / "Makefile", "fresh", f"VENV={venv}", f"PYTHON={python}"]

    def keeps(version: str, text: str) -> bool:
        python.write_text(f"#!/bin/sh\necho {version}\n")
        python.chmod(0o755)
        project.write_text(text)
        plain = {"PATH": os.environ["PATH"]}
        subprocess.run(command, cwd=tmp_path, env=plain, capture_output=True, check=True)
        was_there = (venv / "module").exists()
        (venv / "module").touch()
        return was_there

    assert not keeps("3.13.0", "a") and keeps("3.13.0", "a")
    assert not keeps("3.13.5", "a") and not keeps("3.13.5", "b") and keeps("3.13.5", "b")
    python.write_text("#!/bin/sh\nexit 1\n")
    assert subprocess.run(command, cwd=tmp_path, env={"PATH": os.environ["PATH"]}).returncode
    assert (venv / "module").exists(), "no Python: nothing is thrown away"


@pytest.mark.parametrize("name", ["newest.txt", "newest_short.txt"])
def test_listed_tests_exist(name: str) -> None:
    for line in (ROOT / "tests" / name).read_text("utf-8").splitlines():
        path, _, test = line.partition("::")
        assert test.partition("[")[0] in (ROOT / path).read_text("utf-8")
