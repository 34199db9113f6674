"""The playground of a server that requires API keys, in a real browser."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.e2e.browser import Open, StandIns, make, pages
from tests.e2e.system import ATELIER
from tests.service.standin import MODEL


@pytest.fixture
def key(locked: StandIns) -> str:
    """API key of a tenant at that server."""
    command = [*ATELIER, "keys", "create", "--tenant", "acme", "--redis", locked.redis_url]
    return subprocess.check_output(command, text=True).strip()


@pytest.fixture
def open_page(browser: Browser, locked: StandIns) -> Iterator[Open]:
    with pages(browser, locked.url, state="key needed") as run:
        yield run


def test_a_key_opens_the_page_until_the_tab_is_closed(open_page: Open, key: str) -> None:
    page = open_page()
    field = page.get_by_label("API key")
    for text, message in (("atl_0_0", "key not known"), (key, "ready")):
        field.fill(text)
        field.press("Tab")
        expect(page.locator("#server-state")).to_have_text(message)
    page.select_option("#model", MODEL)
    card = make(page, num_images=2)
    expect(card).to_have_attribute("data-state", "succeeded")
    for number in (0, 1):
        expect(card.locator("img").nth(number)).to_have_js_property("naturalWidth", 32)
    with page.expect_download() as loaded:
        card.get_by_text("↓ 1").click()
    assert Path(loaded.value.path()).read_bytes().startswith(b"\x89PNG")
    page.reload()
    expect(page.locator(".card[data-state=succeeded]")).to_have_count(1)
    expect(card.locator("img").first).to_have_js_property("naturalWidth", 32)
    assert page.evaluate("Object.keys(localStorage).join()") == "atelier.jobs"
    other = page.context.new_page()
    other.goto(page.url)
    expect(other.locator("#server-state")).to_have_text("key needed")
