"""The API reference of a server that requires keys, in a real browser."""

from __future__ import annotations

import re

from playwright.sync_api import Browser, expect

from tests.e2e.browser import StandIns
from tests.e2e.test_playground_keys import key

__all__ = ["key"]


def test_reference_sends_a_request_with_a_key(browser: Browser, locked: StandIns, key: str) -> None:
    with browser.new_context() as context:
        page, errors, foreign = context.new_page(), list[str](), list[str]()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: message.type == "error" and errors.append(message.text))
        page.on(
            "request",
            lambda request: request.url.startswith(locked.url) or foreign.append(request.url),
        )
        page.goto(f"{locked.url}/docs")
        page.get_by_role("button", name="Authorize").click()
        field = page.get_by_label("auth-bearer-value")
        form = page.locator(".auth-container form", has=field)
        field.fill(key)
        form.get_by_role("button", name="Apply credentials").click()
        page.locator(".close-modal").click()
        operation = page.locator("#operations-models-list_models")
        operation.locator(".opblock-summary-control").click()
        operation.get_by_role("button", name="Execute").click()
        response = operation.locator(".live-responses-table .response")
        expect(response.locator(".response-col_status")).to_have_text(re.compile("^200"))
        expect(response).to_contain_text('"data"')
    assert (errors, foreign) == ([], [])
