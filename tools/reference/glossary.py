"""Reference page of the project's terms, from docs/reference/glossary.toml."""

from __future__ import annotations

import tomllib
from pathlib import Path

from tools.reference.markdown import table

FILE = Path(__file__).parents[2] / "docs" / "reference" / "glossary.toml"
HEAD = """# Glossary

Written by `make reference` from [glossary.toml](glossary.toml). The terms are those of vLLM, SGLang, diffusers, JAX and Kubernetes. A test finds retired words in identifiers, docstrings and documents.
"""  # noqa: E501 - a paragraph is a line there


def as_markdown() -> str:
    """Return the reference page of the terms."""
    terms = tomllib.loads(FILE.read_text("utf-8"))["term"]
    rows = [
        (term["name"], term["meaning"], ", ".join([*term.get("retired", ()), *term.get("not", ())]))
        for term in terms
    ]
    return f"{HEAD}\n{table(('term', 'meaning', 'not'), rows)}\n"
