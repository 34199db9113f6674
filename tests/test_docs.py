"""The documentation builds without warnings, and no link of a page is broken."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_arrows import ROOT

PAGES = (
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md"),
    *(str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("models/*/README.md"))),
    *(str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("examples/**/*.md"))),
    *(str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("docs/**/*.md"))),
)
LINK = re.compile(r"\]\(([^)\s]+)\)")
DECISIONS = ROOT / "docs" / "design" / "decisions"
ONE_PAGE_BYTES = 6500


def anchors(text: str) -> set[str]:
    """Anchors of headings as GitHub and the site make them."""
    titles = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def broken(page: Path) -> list[str]:
    """Links of a page to missing files or headings."""
    links = []
    for link in LINK.findall(re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.S)):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if "://" in link:
            continue
        if not target.exists() or (anchor and anchor not in anchors(target.read_text("utf-8"))):
            links.append(link)
    return links


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    assert (tmp_path / "site" / "reference" / "configuration" / "index.html").exists()


@pytest.mark.parametrize("page", PAGES)
def test_no_link_is_broken(page: str) -> None:
    assert broken(ROOT / page) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Here\n[a](page.md#here) [b](none.md) [c](#there) [d](https://none.example)")
    assert broken(page) == ["none.md", "#there"]


def test_every_decision_has_a_date_and_a_status_and_is_listed() -> None:
    index = (DECISIONS / "index.md").read_text("utf-8")
    pages = sorted(DECISIONS.glob("0*.md"))
    numbers = [int(page.name[:4]) for page in pages]
    assert len({*numbers}) == len(numbers) > 40
    for page in pages:
        text = page.read_text("utf-8")
        assert re.search(r"^Date: \d{4}-\d\d-\d\d. Status: \w+", text, re.M), page.name
        title = text.splitlines()[0].partition(". ")[2]
        assert f"({page.name}) | {title} |" in index, page.name


def test_the_readme_is_one_page() -> None:
    assert len((ROOT / "README.md").read_bytes()) <= ONE_PAGE_BYTES
