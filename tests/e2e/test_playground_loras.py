"""The playground's adapter picker in a real browser, with stand-in pools."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.browser import Open, asked_for, pages
from tests.service.adapters import adapter
from tests.service.standin import MODEL, VIDEO


@pytest.fixture
def page(browser: Browser, url: str) -> Iterator[Page]:
    with pages(browser, url) as run:
        page = run()
        page.select_option("#model", MODEL)
        expect(page.locator(".tile")).to_have_count(3)
        yield page


@pytest.fixture
def open_page(browser: Browser, url: str) -> Iterator[Open]:
    with pages(browser, url) as run:
        yield run


def tile(page: Page, name: str) -> Any:
    return page.locator(f'.tile[data-lora="{name}"]')


def test_adapters_are_chosen_scaled_and_sent(page: Page, url: str) -> None:
    expect(tile(page, "ink").locator("img")).to_have_js_property("naturalWidth", 32)
    expect(tile(page, "oil").locator("svg")).to_be_visible()
    tile(page, "ink").click()
    page.get_by_label("Scale of ink", exact=True).fill("-0.5")
    expect(page.get_by_label("Scale of ink, slider")).to_have_value("-0.5")
    request = asked_for(url, page)
    assert request["loras"] == [{"name": "ink", "scale": -0.5}]
    expect(page.locator(".card").first).to_contain_text("adaptersink -0.5")
    tile(page, "ink").click()
    tile(page, "oil").click()
    page.get_by_label("Scale of oil, slider").fill("0.8")
    expect(page.get_by_label("Scale of oil", exact=True)).to_have_value("0.8")
    assert asked_for(url, page)["loras"] == [{"name": "oil", "scale": 0.8}]
    page.locator(".card").nth(1).get_by_text("Use settings").click()
    expect(tile(page, "ink")).to_have_attribute("aria-pressed", "true")
    expect(tile(page, "oil")).to_have_attribute("aria-pressed", "false")
    expect(page.get_by_label("Scale of ink", exact=True)).to_have_value("-0.5")


def test_a_click_puts_the_trigger_into_the_prompt(page: Page) -> None:
    page.fill("#prompt", "a cat")
    tile(page, "ink").click()
    tile(page, "oil").click()  # has no trigger
    trigger = page.get_by_title("Add the trigger to the prompt")
    expect(trigger).to_have_text("+ in ink")
    for _ in range(2):
        trigger.click()
        expect(page.locator("#prompt")).to_have_value("a cat, in ink")


def test_a_click_puts_the_name_of_an_embedding_into_the_prompt(page: Page) -> None:
    page.fill("#prompt", "a cat")
    for _ in range(2):
        page.locator('.tile[data-embedding="mood"]').click()
        expect(page.locator("#prompt")).to_have_value("a cat, mood")
    expect(page.locator("#chosen-loras")).to_be_empty()


def test_picker_is_hidden_for_models_without_adapters(page: Page, url: str) -> None:
    tile(page, "ink").click()
    page.select_option("#model", VIDEO.name)
    expect(page.locator("#loras")).to_be_hidden()
    assert "loras" not in asked_for(url, page)


def test_an_error_is_shown_at_the_picker(page: Page) -> None:
    page.fill("#prompt", "a cat")
    tile(page, "ink").click()
    field = page.get_by_label("Scale of ink", exact=True)
    for value, message in (("", "A scale is a number."), ("101", "at most 100")):
        field.fill(value)
        page.click("#generate")
        expect(page.locator("#loras-error")).to_contain_text(message)
    expect(page.locator(".card")).to_have_count(0)


def test_an_uploaded_one_is_listed_and_many_can_be_searched(open_page: Open, url: str) -> None:
    names = [f"brush-{number}" for number in range(8)]
    with httpx.Client(base_url=url, trust_env=False) as http:
        for seed, name in enumerate(names):
            response = http.post(
                "/v1/loras",
                data={"name": name, "model": MODEL, "trigger": "bristles" if seed == 3 else ""},
                files={"file": adapter(seed=seed)},
            )
            assert response.status_code == 201, response.text
    page = open_page()
    page.select_option("#model", MODEL)
    expect(page.locator(".tile")).to_have_count(11)
    tile(page, "ink").click()
    page.get_by_label("Find an adapter").fill("bristles")
    expect(page.locator(".tile")).to_have_count(2)  # the match and the selected adapter
    expect(tile(page, "brush-3")).to_be_visible()
    with httpx.Client(base_url=url, trust_env=False) as http:
        for name in names:
            assert http.delete(f"/v1/loras/{name}").status_code == 204


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_layout_fits_phone_and_desktop(open_page: Open, tmp_path: Path, scheme: str) -> None:
    """No element is wider than its column, also on a phone. The screenshot is for manual review."""
    for width in (360, 1280):
        page = open_page(color_scheme=scheme, viewport={"width": width, "height": 900})
        page.select_option("#model", MODEL)
        tile(page, "ink").click()
        tile(page, "oil").click()
        assert page.evaluate("document.documentElement.scrollWidth") == width
        page.locator('[data-field="loras"]').scroll_into_view_if_needed()
        page.screenshot(path=tmp_path / f"{scheme}-{width}.png")
