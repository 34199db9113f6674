"""A running system with a safety hook: what is refused before, after, and what is allowed."""

from __future__ import annotations

import json

import httpx

from tests.e2e.conftest import Start
from tests.e2e.system import DEADLINE_S
from tests.e2e.test_answers import BODY
from tests.safety_hook import hook_process


def test_a_hook_is_asked_before_and_after(start: Start) -> None:
    with hook_process() as hook:
        safety = json.dumps({"url": hook.url, "timeout_s": DEADLINE_S})
        running = start(ATELIER_SAFETY=safety)
        with httpx.Client(base_url=running.url, timeout=DEADLINE_S, trust_env=False) as http:

            def ask(prompt: str) -> httpx.Response:
                body = BODY | {"prompt": prompt}
                return http.post("/v1/generate", json=body, headers={"Prefer": "wait"})

            refused = ask("refuse before")
            assert refused.status_code == 422
            assert refused.json()["error"]["code"] == "refused_by_safety"
            ended = ask("refuse after").json()
            assert (ended["state"], ended["outputs"]) == ("failed", [])
            assert ended["error"]["code"] == "refused_by_safety"
            assert ask("a red circle").json()["state"] == "succeeded"
        asked = [(one["request"]["prompt"], one["when"]) for one in hook.asked()]
    assert asked == [
        ("refuse before", "before"),
        ("refuse after", "before"),
        ("refuse after", "after"),
        ("a red circle", "before"),
        ("a red circle", "after"),
    ]
