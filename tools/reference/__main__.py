"""Write the reference pages: `python -m tools.reference`, or `make reference`."""

from __future__ import annotations

from pathlib import Path

from tools.reference.pages import PAGES

ROOT = Path(__file__).parents[2]

if __name__ == "__main__":
    for path, page in PAGES.items():
        (ROOT / path).write_text(page(), "utf-8")
