"""Editable installs import from the source tree under its own names."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from tests.packaging.installed import Installed

NAMES = ("atelier", "deploy", "models", "service", "workers")


def test_packages_are_those_of_the_tree(editable: Installed, sources: Path, tmp_path: Path) -> None:
    program = (
        "from importlib.util import find_spec\n"
        f"for name in {NAMES}: print(find_spec(name).origin)\n"
        "from service.settings.installation import IMPORT_ROOT, PREFIX, how_to_install\n"
        "print(IMPORT_ROOT, repr(PREFIX), how_to_install('cpu'), sep='\\n')"
    )
    process = editable.run(editable.python, "-P", "-c", program, cwd=tmp_path)
    files = [sources / f"{name}/__init__.py" for name in NAMES[1:]]
    assert process.stdout.splitlines() == [
        str(sources / "atelier.py"),
        *map(str, files),
        str(sources),
        "''",
        "in the project's folder, pip install -e '.[cpu]'",
    ], process.stderr
    assert not (sources / "atelier").exists() and "atelier." not in files[0].read_text("utf-8")


def test_command_is_installed(editable: Installed, tmp_path: Path) -> None:
    process = editable.run(editable.command, "--version", cwd=tmp_path)
    assert process.stdout == f"atelier {version('atelier')}\n", process.stderr


def test_its_metadata_lists_the_names(editable: Installed) -> None:
    (listed,) = editable.packages.glob("atelier-*.dist-info/top_level.txt")
    assert tuple(sorted(listed.read_text().split())) == NAMES
