"""Which JSON the front end reads without the bounds of `service.http.json_reader`: its own."""

from __future__ import annotations

import ast
from pathlib import Path

import service

ROOT = Path(service.__file__).parent
OURS = {
    "client.py": "a server's events",
    "http/image_checks.py": "a child's answer",
    "http/json_reader.py": "documents within the reader's bounds",
    "http/lora_checks.py": "a child's answer",
    "confined/file_packing.py": "what the front end tells a child",
    "routes/documented_examples.py": "examples of our own",
}
"""Files with `json.loads` or `model_validate_json`, and what they read."""
STORED = ("auth", "jobs", "operators", "recipes", "webhooks")
"""Folders that read what we have written ourselves, from Redis, the store and our files."""


def readers() -> set[str]:
    found = set()
    for path in ROOT.rglob("*.py"):
        names = {
            node.attr
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Attribute)
        }
        if names & {"loads", "model_validate_json"}:
            found.add(path.relative_to(ROOT).as_posix())
    return found


def test_clients_json_is_read_with_bounds() -> None:
    """A file that is not in the table has to use `parse_object` or `JsonReader`."""
    unknown = {name for name in readers() if name.partition("/")[0] not in STORED}
    assert unknown == OURS.keys()
