"""Static check: front end code parses clients' JSON only by `service.http.json_reader`."""

from __future__ import annotations

import ast
from pathlib import Path

import service

ROOT = Path(service.__file__).parent
OURS = {
    "client.py": "a server's events",
    "http/image_checks.py": "a child's answer",
    "http/json_reader.py": "documents within the reader's bounds",
    "http/lora_check_process.py": "what the front end tells a child",
    "http/lora_checks.py": "a child's answer",
    "confined/file_packing.py": "what the front end tells a child",
    "routes/documented_examples.py": "examples of our own",
}
"""Files that call a function of `PARSERS`, and the trusted JSON that each parses."""
STORED = ("auth", "jobs", "operators", "webhooks")
"""Folders that parse only JSON written by the server: in Redis, the store and local files."""
CONFINED = {"recipes/files.py": "recipes in files", "recipes/parameters.py": "values of infotexts"}
"""Files that parse clients' JSON in the confined child that checks files."""
PARSERS = {"loads", "JSONDecoder", "from_json", "validate_json", "model_validate_json"}


def readers() -> set[str]:
    parsers = set()
    for path in ROOT.rglob("*.py"):
        nodes = [*ast.walk(ast.parse(path.read_text()))]
        names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        names |= {node.name for node in nodes if isinstance(node, ast.alias)}
        if names & PARSERS:
            parsers.add(path.relative_to(ROOT).as_posix())
    return parsers


def test_clients_json_is_read_with_bounds() -> None:
    """A file that is missing in the table must use `parse_object` or `JsonReader`."""
    unknown = {name for name in readers() if name.partition("/")[0] not in STORED}
    assert unknown == OURS.keys() | CONFINED.keys()
