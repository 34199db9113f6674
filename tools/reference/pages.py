"""Table of the generated reference pages, with the function that renders each."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tools.reference import cli, configuration, glossary, job_states, metrics

PAGES: Mapping[str, Callable[[], str]] = {
    "docs/reference/configuration.md": configuration.as_markdown,
    "docs/reference/cli.md": cli.as_markdown,
    "docs/reference/metrics.md": metrics.as_markdown,
    "docs/reference/job-states.md": job_states.as_markdown,
    "docs/reference/glossary.md": glossary.as_markdown,
}
