"""MkDocs hook that adds the reference page of the HTTP API, which is not kept in git."""

from __future__ import annotations

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from tools.reference.http_api import as_markdown

PAGE = "reference/http-api.md"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated page to the site's files."""
    files.append(File.generated(config, PAGE, content=as_markdown()))
    return files
