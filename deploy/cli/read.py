"""`atelier read`: print the recipe and `parameters` that files contain."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy.cli.options import Commands
from deploy.exit_codes import EXIT_FAILED, UsageError, say

if TYPE_CHECKING:
    from service.recipes.recipe import Recipe

NOTHING = (
    "it has no recipe: it was made without metadata, was saved again, or has a format without"
    " metadata, such as WebM"
)


def add(commands: Commands) -> None:
    """Add the command `atelier read` and its options to the parser."""
    parser = commands.add_parser("read", help="print the recipe and parameters in image files")
    parser.add_argument(
        "file", nargs="+", type=Path, metavar="FILE", help="PNG, JPEG, WebP, GIF or MP4"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, one file per line")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    """Run `atelier read`: print the metadata of each file; return 1 if a file has none."""
    return max([_read(file, args.json) for file in args.file])


def _read(file: Path, as_json: bool) -> int:
    """Print a file's metadata; return the exit code. Raises: UsageError: unreadable file."""
    from service.recipes.files import BrokenRecipe, read_parameters, read_recipe

    data = _bytes(file)
    try:
        recipe = read_recipe(data)
    except BrokenRecipe as error:
        say(f"atelier: {file}: {error}")
        return EXIT_FAILED
    parameters = read_parameters(data)
    if recipe is None and parameters is None:
        say(f"atelier: {file}: {NOTHING}")
        return EXIT_FAILED
    print(_line(file, recipe, parameters) if as_json else _page(file, recipe, parameters))
    return 0


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UsageError(f"can't read {str(file)!r}: {error.strerror}") from None


def _line(file: Path, recipe: Recipe | None, parameters: str | None) -> str:
    return json.dumps({"file": str(file), "recipe": _fields(recipe), "parameters": parameters})


def _page(file: Path, recipe: Recipe | None, parameters: str | None) -> str:
    parts = {
        "recipe": recipe and json.dumps(_fields(recipe), indent=2, ensure_ascii=False),
        "parameters": parameters,
    }
    return "\n".join([f"# {file}", *(f"## {name}\n{text}" for name, text in parts.items() if text)])


def _fields(recipe: Recipe | None) -> dict[str, Any] | None:
    return recipe.model_dump(exclude_none=True) if recipe else None
