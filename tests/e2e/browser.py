"""Helpers of the playground's tests: a real browser, and pages that fail on console errors."""

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

import httpx
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
"""Console message of the browser about a 4xx response."""

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
    """Open the playground, in a new or a given storage state. At the end, no page may have logged
    an error and no request may have left its server.

    Args:
        state: expected text of the server's state.
    """
    opened: list[Page] = []
    errors: list[str] = []
    requests: list[Request] = []

    def run(**context: Any) -> Page:
        page = browser.new_context(**context).new_page()
        page.on(
            "console",
            lambda message: message.type in ("error", "warning") and errors.append(message.text),
        )
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: requests.append(request))
        page.goto(url)
        expect(page.locator("#server-state")).to_have_text(state)
        opened.append(page)
        return page

    yield run
    for page in opened:
        page.context.close()
    foreign = [
        request.url
        for request in requests
        if not request.url.startswith((url, f"blob:{url}", "data:"))
    ]
    assert (foreign, [text for text in errors if not REFUSED.match(text)]) == ([], [])


class StandIns(NamedTuple):
    """Addresses of a front end and its Redis that run as a process with stand-in pools."""

    url: str
    redis_url: str


@contextmanager
def standins(folder: Path, **variables: str) -> Iterator[StandIns]:
    """Run a front end with stand-in pools, with its own Redis in that folder.

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
    """Fill in the form and submit it by keyboard; returns the new card."""
    before = page.locator(".card").count()
    page.get_by_label("Prompt", exact=True).fill(prompt)
    for name, value in fields.items():
        page.fill(f"#{name}", str(value))
    page.keyboard.press("Control+Enter")
    expect(page.locator(".card")).to_have_count(before + 1)
    return page.locator(".card").first


def asked_for(url: str, page: Page) -> dict[str, Any]:
    """The request of a new job after resolution of its defaults."""
    card = make(page)
    expect(card).to_have_attribute("data-state", "succeeded")
    with httpx.Client(base_url=url, trust_env=False) as http:
        return http.get("/v1/jobs", params={"limit": 1}).json()["data"][0]["request"]
