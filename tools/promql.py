"""Selectors of our PromQL, by the names that our series have."""

from __future__ import annotations

import re

SELECTOR = re.compile(
    r"\b(?P<name>atelier_\w+|[a-z]\w*(?::\w+)+|process_\w+|kube_\w+|up(?=\s*[{=]|$)|ALERTS)"
    r"(?:\{(?P<matchers>(?:[^}\"]|\"[^\"]*\")*)\})?"
)
"""Series as they are asked for: ours, recorded ones, and the few that Prometheus itself has."""


def scoped(expr: str, matchers: str) -> str:
    """Return an expression whose every selector has further matchers.

    Args:
        matchers: as between braces; empty: none.
    """

    def narrowed(found: re.Match[str]) -> str:
        every = ",".join(filter(None, (found["matchers"], matchers)))
        return f"{found['name']}{{{every}}}" if every else found["name"]

    return SELECTOR.sub(narrowed, expr)
