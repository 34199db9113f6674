"""Progress of a job on the playground in a real browser, with a stand-in pool."""

from __future__ import annotations

from playwright.sync_api import Browser, expect
from redis import Redis

from tests.e2e.browser import StandIns, make, pages
from tests.e2e.standins import GATE, HELD


def test_a_job_waits_and_shows_its_steps(browser: Browser, stand_ins: StandIns) -> None:
    """The pool holds its job at each step until the page has shown the step."""
    with pages(browser, stand_ins.url) as run, Redis.from_url(stand_ins.redis_url) as redis:
        page = run()
        page.select_option("#model", HELD.name)
        first, second = (page.locator(".card", has_text=text) for text in ("a star", "a circle"))
        make(page, "a star", num_inference_steps=1)
        expect(first).to_contain_text("step 1 of 1")
        make(page, "a circle", num_inference_steps=3)
        expect(second).to_contain_text("waiting")
        redis.rpush(GATE, 1)
        expect(first).to_have_attribute("data-state", "succeeded")
        for step in (1, 2, 3):
            expect(second).to_contain_text(f"step {step} of 3")
            redis.rpush(GATE, 1)
        expect(second).to_have_attribute("data-state", "succeeded")
