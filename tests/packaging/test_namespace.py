"""Imports of the sources are rewritten for the wheel."""

from __future__ import annotations

import ast
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("deploy", "models", "service", "workers")
namespaced: Callable[[str, tuple[str, ...]], str] = runpy.run_path(str(ROOT / "setup.py"))[
    "namespaced"
]


@pytest.mark.parametrize(
    ("source", "result"),
    [
        ("from service.app import x\n", "from atelier.service.app import x\n"),
        ("from models import flux, wan\n", "from atelier.models import flux, wan\n"),
        ("import models.demo as demo\n", "import atelier.models.demo as demo\n"),
        (
            "import os, models.demo as d, workers.retry as r\n",
            "import os, atelier.models.demo as d, atelier.workers.retry as r\n",
        ),
        ("é = 1; from service import y\n", "é = 1; from atelier.service import y\n"),
    ],
)
def test_own_imports_are_prefixed(source: str, result: str) -> None:
    assert namespaced(source, PACKAGES) == result


@pytest.mark.parametrize(
    "source",
    [
        "from service_other import x\nfrom .service import y\nimport modelsummary\n",
        "'''from service import x'''\nx = 'models.flux'\n",
        "x = service.app\n",
    ],
)
def test_other_source_is_unchanged(source: str) -> None:
    assert namespaced(source, PACKAGES) == source


@pytest.mark.parametrize("source", ["import models.demo\n", "def f():\n    import service\n"])
def test_an_import_that_binds_a_top_name_is_refused(source: str) -> None:
    with pytest.raises(ValueError, match=r"line \d: write `from … import …` instead"):
        namespaced(source, PACKAGES)


def strings(tree: ast.Module) -> Iterator[str]:
    """Yield string literals of a source, including fixed parts of f-strings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def is_module(text: str) -> bool:
    """Whether a text is the dotted name of a module in our packages."""
    parts = text.split(".")
    path = ROOT.joinpath(*parts)
    return (
        len(parts) > 1
        and parts[0] in PACKAGES
        and all(part.isidentifier() for part in parts)
        and (path.is_dir() or path.with_suffix(".py").is_file())
    )


def test_a_module_in_a_string_is_found() -> None:
    assert is_module("models.flux.load") and is_module("service.http")
    assert not is_module("service.name") and not is_module("models") and not is_module("a b")


def test_no_module_is_named_in_a_string() -> None:
    """The rewriting of imports misses names in strings; build them from `__package__`."""
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    assert len(files) > 40, "the sources were not found"
    modules = [
        (str(path.relative_to(ROOT)), text)
        for path in files
        for text in strings(ast.parse(path.read_text("utf-8")))
        if is_module(text)
    ]
    assert modules == []
