"""Regular expressions that match clients' text take time linear in its length."""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SIZE = 2**20
LIMIT_S = 10.0
"""Processor time for a megabyte. The slowest pattern takes a second; a quadratic one takes hours.
"""
WORST: Mapping[str, tuple[str, ...]] = {
    "models.adapters.files.alphas:_PATTERN": ("a", "^", "$"),
    "models.adapters.files.embedding:_BUNDLED": ("bundle_emb.", "."),
    "models.adapters.files.embedding:_SINGLE": ("<", "<a", "a"),
    "models.adapters.files.key_endings:_ADAPTER_NAME": (".lora_A", ".lora_A.", ".lokr_w1.a"),
    "models.adapters.files.key_endings:_WRAPPER": ("module.", "_orig_mod", "."),
    "models.adapters.files.ignored_keys:_BUFFERS": (".", ".weight", ".combined_"),
    "models.adapters.files.ignored_keys:_EMBEDDING": ("bundle_emb.", "a"),
    "models.adapters.files.ignored_keys:_ENCODERS": ("position_", "lora_te3_", "a"),
    "models.adapters.files.ignored_keys:_MARKER": ("__a", ".__", ".__a__", "_"),
    "models.spec.embeddings:_CONTINUATION": ("a", "-"),
    "models.spec.embeddings:_ENDING": (".", ".p", ".safetensor"),
    "models.spec.embeddings:_UNKNOWN": ("a", " ", "("),
    "models.spec.embeddings:_WORD": ("a", "-"),
    "models.spec.file_kinds:_OLD_PICKLE": ("(", "(lp0\n", "c", "ca\n", "d1"),
    "models.spec.file_kinds:_PAGE": (" ", "\t", "<", "<!", "\n<"),
    "models.spec.file_kinds:_TEXT": ("a", "\x00", "\n"),
    "models.spec.prompt_syntax:_AND": ("AND", "a", " AND"),
    "models.spec.prompt_syntax:_BREAK": ("BREAK", "a", " BREAK"),
    "models.spec.prompt_syntax:_NUMBER": ("1", "1.", "+", "."),
    "models.spec.prompt_syntax:_PIECE": ("a", "(", "\\"),
    "models.spec.prompt_syntax:_SPECIAL": ("a", "("),
    "service.errors.handlers:_SLASHES": ("/", "//", "/a"),
    "service.auth.allowed_hosts:_HOST": ("a", "[", ":", "1"),
    "service.errors.did_you_mean:_CASE": ("a", "aA", "-"),
    "service.http.negotiation:_QUALITY": ("1", "1.", "."),
    "service.http.negotiation:_SECONDS": ("1", "-"),
    "service.http.json_reader:_TEXT": ("a", "\\", "\\u", '"'),
    "service.http.json_reader:_TOKEN": ("a", '"', '"a', "[", ","),
    "service.http.multipart:_INDEX": ("1", "]"),
    "service.http.ranges:_ONE": ("bytes=", "1", "-"),
    "service.http.headers:_WELL_FORMED": ("a", "/"),
    "service.recipes.parameters:_NEEDS_QUOTES": ("a", ","),
    "service.routes.jobs:_FORMAT": ("1", "2026-01-01T00:00:00.", "2026-01-01T00:00:00.1"),
    "service.recipes.parameters:_PAIR": ("a", "a ", "a:", 'a:"', 'a:"\\"', "a: b, ", "\\"),
    "service.recipes.parameters:_SIZE": ("1", "1x", "x"),
    "service.routes.admin:DAY": ("1", "1-"),
    "service.routes.compat.a1111.control_units:_HASH": (" [", "a", " [a", "[0123"),
    "service.routes.compat.a1111.prompts:_TAG": ("<", "<a:", "<a:b", "a"),
    "service.routes.compat.mcp.tools:JOB": ("job_", "a", "job_1/"),
    "service.routes.compat.openai.batch_bodies:WINDOW": ("1", "24h", "h"),
    "service.routes.compat.openai.field_values:_SIZE": ("1", "1x", "x"),
    "service.schemas.request_parts:_BAD_CHARACTER": ("a", "\x00"),
    "service.schemas.request_parts:_LORA_NAME": ("a", "a ", " "),
    "service.settings.tenants:NAME": ("a", "."),
    "service.tracing.spans:_TRACEPARENT": ("0", "00-", "-"),
    "service.validation.ineffective_fields:_LORA_TAG": ("<", "<lora:", "<lora:a"),
}
"""Patterns by module and name, and the strings that the test repeats as their input."""
OURS = {
    "service.jobs.scripts.composition": "our own scripts",
    "service.jobs.scripts.script": "our own classes' names",
    "service.jobs.storage.object_store": "our own keys",
    "service.openapi": "our own descriptions",
    "service.routes.documented_components": "our own OpenAPI document",
}
"""Modules whose patterns never match clients' text."""
OUR_FUNCTIONS = {
    ("models.adapters.files.base_models", "re.search"): "bounded keys, in a child process",
    ("models.adapters.files.ignored_keys", "re.search"): "names without repetition",
    ("service.schemas.unknown_fields", "re.split"): "our own suggestions",
}
"""Functions of `re` by module that match no long text of clients."""


def patterns() -> set[str]:
    """Return the names of compiled patterns in modules that a front end or its children load."""
    names = set()
    for folder in (ROOT / "service", *(ROOT / "models" / room for room in ("adapters", "spec"))):
        for path in folder.rglob("*.py"):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            if module not in OURS:
                names |= {f"{module}:{name}" for name in _patterns(ast.parse(path.read_bytes()))}
    return names - {f"{module}:{name}" for module, name in OUR_FUNCTIONS}


def _patterns(tree: ast.Module) -> set[str]:
    """Return the names of a module's patterns, and the functions of `re` that it calls."""
    assigned = {
        id(node.value): ast.unparse(target)
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    }
    return {
        assigned.get(id(node), ast.unparse(node.func))
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).startswith("re.")
        and ast.unparse(node.func) != "re.escape"
    }


def test_every_pattern_is_tried() -> None:
    assert patterns() == WORST.keys()


@pytest.mark.parametrize("name", WORST)
def test_a_megabyte_takes_linear_time(name: str) -> None:
    module, _, attribute = name.partition(":")
    pattern: re.Pattern[Any] = getattr(import_module(module), attribute)
    for repeated in WORST[name]:
        text = (repeated * SIZE)[:SIZE]
        for end in ("", "!"):
            data = text + end if isinstance(pattern.pattern, str) else (text + end).encode()
            for use in uses(module, attribute, pattern):
                began = time.thread_time()
                use(data)
                assert time.thread_time() - began < LIMIT_S, (repeated, end, use)


def uses(
    module: str, attribute: str, pattern: re.Pattern[Any]
) -> Sequence[Callable[[Any], object]]:
    """Return the methods of a pattern that are called on clients' text."""
    source = ROOT / f"{module.replace('.', '/')}.py"
    files = [source] if attribute.startswith("_") else [*(ROOT / "service").rglob("*.py")]
    calls = rf"\b(?:{attribute}|pattern)\.(fullmatch|match|search|split|findall|finditer|sub)\("
    names = {name for file in files for name in re.findall(calls, file.read_text("utf-8"))}
    assert names, "no call of the pattern"
    every: Mapping[str, Callable[[Any], object]] = {
        "finditer": lambda data: [*pattern.finditer(data)],
        "sub": lambda data: pattern.sub(data[:0], data),
    }
    return [every.get(name) or getattr(pattern, name) for name in sorted(names)]
