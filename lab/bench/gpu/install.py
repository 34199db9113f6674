"""Unpack packages that this Python lacks from the folder of wheels. Imports only the standard
library."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def install_wheels(wheels: Path, site: Path, installed: Callable[[str], bool]) -> list[str]:
    """Unpack each wheel whose package is not installed; return their names.

    A wheel is a zip file whose top level belongs in a site folder. Its programs and headers are not
    needed.

    Raises:
        BadZipFile: a wheel is damaged; make the folder again.
    """
    site.mkdir(parents=True, exist_ok=True)
    brought = []
    for wheel in sorted(wheels.glob("*.whl")):
        name = wheel.name.split("-")[0]
        if installed(name):
            continue
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
        brought.append(name)
    return brought


def is_installed(name: str) -> bool:
    """Whether this Python has the package in any version."""
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


def fits_here(wheels: Path) -> bool:
    """Whether the folder's compiled wheels are for this version of Python."""
    tags = {wheel.stem.split("-")[-3] for wheel in wheels.glob("*.whl")}
    compiled = {tag for tag in tags if tag.startswith("cp3") and not tag.endswith("abi3")}
    exact = {tag for tag in compiled if tag[3:].isdigit() and int(tag[3:]) >= 11}
    return not exact or f"cp3{sys.version_info.minor}" in exact
