"""The operators' page of a server that requires keys, in a real browser."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from playwright.sync_api import Browser, Page, expect

from service.jobs.queue import Queue
from service.settings.queue import QueueSettings
from tests.e2e.browser import StandIns
from tests.e2e.system import ATELIER
from tests.e2e.test_playground_keys import key
from tests.service.jobs.examples import FAILURE, a_job
from tests.service.standin import MODEL, SPEC

__all__ = ["key"]

REQUEST = {"output": {"format": "png"}, "seed": 1}
"""What the stand-in reads of a job's request."""


@pytest.fixture
def operators_key(locked: StandIns) -> str:
    command = [*ATELIER, "keys", "create", "--operator", "--name", "alice"]
    command += ["--redis", locked.redis_url]
    return subprocess.check_output(command, text=True).strip()


@pytest.fixture
def page(browser: Browser, locked: StandIns) -> Iterator[Page]:
    """Page of the browser; it must raise no error and send no request to another server."""
    with browser.new_context() as context:
        page, errors = context.new_page(), list[str]()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on(
            "request",
            lambda request: request.url.startswith(locked.url) or errors.append(request.url),
        )
        page.goto(f"{locked.url}/operator")
        yield page
        assert not errors


async def queue_jobs(redis_url: str) -> str:
    """Put a job that fails, one that runs, whose id is returned, and one that waits."""
    queue = await Queue.connect(redis_url, QueueSettings(lease_s=600))
    try:
        await queue.register("z-sick", SPEC, ready=True)
        for _ in range(3):
            await queue.put(a_job(tenant="acme", request=REQUEST))
        (failing,) = await queue.claim("z-sick", MODEL, 1)
        await queue.fail(failing, FAILURE, retry=False)
        (running,) = await queue.claim("z-sick", MODEL, 1)
        await queue.unregister("z-sick", MODEL)
        return running.job.id
    finally:
        await queue.close()


def enter(page: Page, text: str) -> None:
    page.get_by_label("Operator's key").fill(text)
    page.get_by_role("button", name="Open").click()


def test_operator_page(
    page: Page,
    locked: StandIns,
    key: str,
    operators_key: str,
) -> None:
    state = page.locator("#server-state")
    expect(state).to_have_text("key needed")
    enter(page, key)
    expect(state).to_contain_text("this key is a tenant's")
    expect(page.locator("#all")).to_be_hidden()
    enter(page, operators_key)
    expect(state).to_have_text("ready")
    worker = page.locator("#workers tbody tr").first
    expect(worker).to_contain_text(MODEL)
    page.get_by_label("Reason").fill("a driver <b>")
    worker.get_by_role("button", name="Pause").click()
    expect(page.locator("#paused tbody tr")).to_contain_text("a driver <b>")
    expect(page.locator("#paused tbody tr")).to_contain_text("alice")
    with ThreadPoolExecutor() as threads:  # Playwright's event loop runs in this one
        running = threads.submit(asyncio.run, queue_jobs(locked.redis_url)).result()
    expect(page.locator("#waiting tbody tr")).to_have_text([f"{MODEL}acme11.0"])
    expect(page.locator("#failed tbody tr").first).to_contain_text(FAILURE.code)
    expect(page.locator("#running tbody tr")).to_contain_text(running)
    page.get_by_role("button", name=f"Cancel {running}").click()
    expect(page.locator("#running")).to_have_text("none")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("#paused")).to_have_text("none")
    expect(page.locator("#waiting")).to_have_text("none")
    entries = page.locator("#audit tbody tr")
    expect(entries.first).to_contain_text("resume pool")
    expect(entries.filter(has_text="127.0.0.1")).to_have_count(3)
    created = entries.filter(has_text="command line at").filter(
        has_text="create operator's key alice"
    )
    expect(created).to_have_count(1)
    page.reload()
    expect(state).to_have_text("ready")  # the tab stores the key
