"""The playground in a real browser, against a running system."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, expect

from service.client import Client
from service.recipes.files import embed
from tests.e2e.browser import Open, make, pages
from tests.e2e.system import System
from tests.service.recipes.examples import recipe
from tests.service.standin import picture

pytestmark = pytest.mark.timeout(900)  # seconds, for the system's start


@pytest.fixture
def open_page(browser: Browser, system: System) -> Iterator[Open]:
    """Function that opens a page with the model `tiny` selected."""
    with pages(browser, system.url) as run:

        def opened(**context: Any) -> Page:
            page = run(**context)
            page.select_option("#model", "tiny")
            return page

        yield opened


def finished(card: Locator) -> Locator:
    """Wait for a card's job to succeed and its image to load; returns the image."""
    expect(card).to_have_attribute("data-state", "succeeded")
    image = card.locator("img").first
    image.scroll_into_view_if_needed()
    expect(image).to_have_js_property("complete", True)
    return image


def test_generate_and_download_an_image(open_page: Open, tmp_path: Path) -> None:
    page = open_page()
    card = make(page, num_inference_steps=3, seed=7)
    assert finished(card).evaluate("image => [image.naturalWidth, image.naturalHeight]") == [64, 64]
    for setting in ("64 × 64", "steps3", "seed7", "tiny"):
        expect(card).to_contain_text(setting)
    with page.expect_download() as loaded:
        card.get_by_text("Download").click()
    assert loaded.value.suggested_filename == "atelier-tiny-7.png"
    loaded.value.save_as(tmp_path / "picture.png")
    with Image.open(tmp_path / "picture.png") as image:
        assert image.size == (64, 64)


def test_repeating_a_request_changes_the_seed_only(open_page: Open) -> None:
    page = open_page()
    make(page, "a star", num_inference_steps=3, seed=7)
    finished(page.locator(".card").first)
    page.get_by_title("Again with another seed").click()
    expect(page.locator(".card[data-state=succeeded]")).to_have_count(2)
    first, again = (page.locator(".card .settings").nth(i).inner_text() for i in (1, 0))
    seed = re.compile(r"seed\s*(\d+)")
    assert seed.search(first)[1] == "7" != seed.search(again)[1]
    unseeded = [
        re.sub(r"took.*", "", seed.sub("", text), flags=re.DOTALL) for text in (first, again)
    ]
    assert unseeded[0] == unseeded[1]


def test_reload_keeps_existing_gallery_entries(open_page: Open, system: System) -> None:
    page = open_page()
    for prompt in ("an old star", "a new star"):
        finished(make(page, prompt, num_inference_steps=2))
    slow = make(page, "a slow star", num_inference_steps=150, num_images=4)
    expect(slow).not_to_contain_text("sending")
    page.reload()
    expect(page.locator(".card")).to_have_count(3)
    expect(slow).to_have_attribute("data-state", "succeeded")
    prompts = page.locator(".card .prompt").all_inner_texts()
    assert prompts == ["a slow star", "a new star", "an old star"]
    with httpx.Client(base_url=system.url, trust_env=False) as http:
        oldest = http.get("/v1/jobs", params={"limit": 3}).json()["data"][2]
        assert http.delete(f"/v1/jobs/{oldest['id']}").status_code == 204
    page.reload()
    expect(page.locator(".card")).to_have_count(2)


def test_an_error_is_shown_at_its_field(open_page: Open) -> None:
    page = open_page()
    page.fill("#prompt", "a star")
    page.fill("#width", "60000")
    page.click("#generate")
    width = page.locator("#width")
    expect(page.locator("#width-error")).not_to_be_empty()
    expect(width).to_have_attribute("aria-describedby", "width-error")
    expect(width).to_be_focused()
    expect(page.locator(".card")).to_have_count(0)
    make(page, width=64, num_inference_steps=1)
    expect(page.locator("#width-error")).to_have_count(0)
    page.fill("#prompt", "")
    page.click("#generate")
    expect(page.locator("#prompt-error")).not_to_be_empty()


def test_cancel(open_page: Open) -> None:
    page = open_page()
    card = make(page, "slow after", num_inference_steps=2)  # the safety hook delays its verdict
    expect(card).to_contain_text("storing")
    card.get_by_text("Cancel").click()
    expect(card).to_have_attribute("data-state", "canceled")
    card.get_by_text("Remove").click()
    expect(page.locator("#empty")).to_be_visible()


def test_image_to_image(open_page: Open, tmp_path: Path) -> None:
    Image.new("RGB", (64, 64), "red").save(tmp_path / "red.png")
    page = open_page()
    expect(page.locator("#strength")).to_be_hidden()
    page.set_input_files("#image", tmp_path / "red.png")
    expect(page.locator("#strength")).to_have_value("0.6")
    card = make(page, num_inference_steps=5)
    finished(card)
    expect(card).to_contain_text("strength")


def test_several_images_of_one_request(open_page: Open) -> None:
    page = open_page()
    card = make(page, num_inference_steps=2, num_images=3, seed=9)
    finished(card)
    expect(card.locator("img")).to_have_count(3)
    card.locator(".open").nth(2).click()
    expect(page.locator("#viewer")).to_contain_text("seed11")
    page.keyboard.press("Escape")
    expect(page.locator("#viewer")).to_be_hidden()


def test_the_width_of_a_phone(open_page: Open) -> None:
    page = open_page(viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True)
    card = make(page, "a star " + "with-a-very-long-word" * 9, num_inference_steps=2, num_images=3)
    finished(card)
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    card.locator(".open").first.tap()
    assert page.locator("#viewer").bounding_box()["width"] <= 360


DROP = """([selector, name, bytes]) => {
  const data = new DataTransfer();
  data.items.add(new File([Uint8Array.from(atob(bytes), (one) => one.charCodeAt(0))], name));
  const drop = new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true});
  document.querySelector(selector).dispatchEvent(drop);
}"""


def drop(page: Page, selector: str, name: str, data: bytes) -> None:
    """Drop a file onto an element of the page."""
    page.evaluate(DROP, [selector, name, base64.b64encode(data).decode()])


@pytest.mark.parametrize("format", ["png", "jpeg", "webp"])
def test_dropped_file_restores_its_settings(open_page: Open, system: System, format: str) -> None:
    settings = {
        "model": "tiny",
        "prompt": "a \u72d0 & <star>",
        "num_inference_steps": 3,
        "seed": 2**62 + 1,
    }
    request = {**settings, "guidance_scale": 2.5, "num_images": 2, "output": {"format": format}}
    with Client(system.url) as client:
        client.submit(request)
        assert [event.name for event in client.follow()][-1] == "succeeded"
        second = client.output(client.job()["outputs"][1]["url"])
    page = open_page()
    page.fill("#num_images", "4")
    drop(page, "#gallery-title", f"star.{format}", second)
    expect(page.locator("#restored")).to_have_text(f"The form has the settings of star.{format}.")
    expect(page.locator("#prompt")).to_have_value(settings["prompt"])
    values = {"num_inference_steps": 3, "seed": 2**62 + 2, "guidance_scale": 2.5, "num_images": 1}
    for name, value in values.items():
        expect(page.locator(f"#{name}")).to_have_value(str(value))
    expect(page.locator("#output")).to_have_value(format)
    page.click("#generate")
    finished(page.locator(".card").first)
    expect(page.locator("#restored")).to_be_hidden()
    with Client(system.url) as client:
        client.job_id = client.jobs(limit=1)["data"][0]["id"]
        [again] = client.job()["outputs"]
        assert client.output(again["url"]) == second, "the same bytes"


def test_file_without_settings_shows_an_alert(open_page: Open, tmp_path: Path) -> None:
    Image.new("RGB", (64, 64), "red").save(tmp_path / "red.png")
    page = open_page()
    page.fill("#prompt", "a star")
    drop(page, "body", "red.png", (tmp_path / "red.png").read_bytes())
    expect(page.locator("#alert")).to_contain_text("red.png holds no settings")
    expect(page.locator("#prompt")).to_have_value("a star")
    drop(page, "#image-drop", "red.png", (tmp_path / "red.png").read_bytes())
    expect(page.locator("#image-thumb")).to_be_visible()
    expect(page.locator("#image-name")).to_have_text("red.png")


def test_chosen_file_reports_missing_settings(open_page: Open, tmp_path: Path) -> None:
    bare_recipe = recipe(prompt="a fox", scheduler=None).without_prompts()
    (tmp_path / "fox.png").write_bytes(embed(picture(), "image/png", bare_recipe))
    page = open_page()
    page.set_input_files("#recipe", tmp_path / "fox.png")
    expect(page.locator("#restored")).to_have_text(
        "The form has the settings of fox.png. The model flux-demo is not served here. "
        "It holds no prompt. Add what it was made from: image."
    )


LUMINANCE = """selector => {
  const channels = (value) => value.match(/[\\d.]+/g).slice(0, 3).map(Number);
  const light = (value) => channels(value).map((c) => c / 255)
    .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const node = document.querySelector(selector);
  const painted = (at) => getComputedStyle(at).backgroundColor;
  let behind = node;
  while (painted(behind) === "rgba(0, 0, 0, 0)") behind = behind.parentElement;
  return [getComputedStyle(node).color, painted(behind)].map(light);
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_can_be_read(open_page: Open, scheme: str) -> None:
    page = open_page(color_scheme=scheme)
    finished(make(page, num_inference_steps=2))
    page.fill("#prompt", "")
    page.click("#generate")
    for selector in (
        "body",
        "label",
        ".hint",
        "#generate",
        ".plain",
        ".settings dt",
        ".error",
        "nav a",
    ):
        text, behind = page.evaluate(LUMINANCE, selector)
        contrast = (max(text, behind) + 0.05) / (min(text, behind) + 0.05)
        assert contrast >= 4.5, f"{selector}: {contrast:.1f} is under WCAG's AA"
    _, paper = page.evaluate(LUMINANCE, "body")
    assert (paper < 0.1) == (scheme == "dark")


def test_every_control_has_a_name(open_page: Open) -> None:
    page = open_page()
    nameless = page.eval_on_selector_all(
        "input, select, textarea, button",
        """nodes => nodes
          .filter((node) => !node.labels?.length && !node.ariaLabel && !node.textContent.trim())
          .filter((node) => !document.getElementById(node.getAttribute("aria-labelledby")))
          .map((node) => node.outerHTML)""",
    )
    assert nameless == []
