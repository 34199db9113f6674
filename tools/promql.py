"""Rewriting of PromQL selectors, recognized by the names of this project's series."""

from __future__ import annotations

import re

SELECTOR = re.compile(
    r"\b(?P<name>atelier_\w+|[a-z]\w*(?::\w+)+|process_\w+|kube_\w+|up(?=\s*[{=]|$)|ALERTS)"
    r"(?:\{(?P<matchers>(?:[^}\"]|\"[^\"]*\")*)\})?"
)
"""Selector of a series: this project's, recorded, or Prometheus's own."""


def scoped(expr: str, matchers: str) -> str:
    """Add matchers to every selector of an expression.

    Args:
        matchers: text between braces; empty: none.
    """

    def narrowed(match: re.Match[str]) -> str:
        every = ",".join(filter(None, (match["matchers"], matchers)))
        return f"{match['name']}{{{every}}}" if every else match["name"]

    return SELECTOR.sub(narrowed, expr)
