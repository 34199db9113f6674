"""The generated pages, and what writes each."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tools.reference import cli, configuration, http_api, job_states, metrics

PAGES: Mapping[str, Callable[[], str]] = {
    "docs/reference/configuration.md": configuration.as_markdown,
    "docs/reference/cli.md": cli.as_markdown,
    "docs/reference/http-api.md": http_api.as_markdown,
    "docs/reference/metrics.md": metrics.as_markdown,
    "docs/reference/job-states.md": job_states.as_markdown,
}
