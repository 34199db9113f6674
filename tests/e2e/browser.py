"""What the tests of the playground share: a real browser, and pages in which nothing goes wrong."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from playwright.sync_api import Browser, Locator, Page, Request, expect, sync_playwright

from deploy.local.embedded_redis import embedded
from tests.conftest import PATIENCE_S
from tests.e2e.system import DEADLINE_S

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--no-first-run",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
]
REFUSED = re.compile("Failed to load resource: .* 4[0-9]{2}")
"""What the browser itself writes about an answer that tells of an error."""

Open = Callable[..., Page]


@contextmanager
def a_browser() -> Iterator[Browser]:
    program = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if program is None:
        pytest.skip("there is no Chromium here; .ci/run installs it")
    expect.set_options(timeout=1000 * DEADLINE_S)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()


@contextmanager
def pages(browser: Browser, url: str, state: str = "ready") -> Iterator[Open]:
    """Open the playground, anew or with a storage of before; at the end, nothing may have gone
    wrong in it, and no request have left its server.

    Args:
        state: what the page says of the server first.
    """
    opened: list[Page] = []
    wrong: list[str] = []
    asked: list[Request] = []

    def run(**context: Any) -> Page:
        page = browser.new_context(**context).new_page()
        page.on(
            "console", lambda said: said.type in ("error", "warning") and wrong.append(said.text)
        )
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: asked.append(request))
        page.goto(url)
        expect(page.locator("#server-state")).to_have_text(state)
        opened.append(page)
        return page

    yield run
    for page in opened:
        page.context.close()
    away = [
        request.url
        for request in asked
        if not request.url.startswith((url, f"blob:{url}", "data:"))
    ]
    assert (away, [text for text in wrong if not REFUSED.match(text)]) == ([], [])


class StandIns(NamedTuple):
    """A front end with stand-ins for pools, as a process."""

    url: str
    redis_url: str


@contextmanager
def standins(folder: Path, **variables: str) -> Iterator[StandIns]:
    """Run a front end with stand-ins, on a Redis of its own in that folder.

    Args:
        variables: settings of the front end.
    """
    with embedded(folder) as address:
        redis_url = f"{address}?socket_timeout={PATIENCE_S}"
        with subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.standins", redis_url, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"ATELIER_REDIS__URL": redis_url} | variables,
        ) as process:
            assert process.stdout is not None
            yield StandIns(process.stdout.readline().strip(), redis_url)
            process.communicate(timeout=DEADLINE_S)


def make(page: Page, prompt: str = "a red circle", **fields: object) -> Locator:
    """Fill in the form and send it by the keyboard; the new card."""
    before = page.locator(".card").count()
    page.get_by_label("Prompt", exact=True).fill(prompt)
    for name, value in fields.items():
        page.fill(f"#{name}", str(value))
    page.keyboard.press("Control+Enter")
    expect(page.locator(".card")).to_have_count(before + 1)
    return page.locator(".card").first
