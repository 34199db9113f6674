"""A running system with a safety hook: refusals before and after denoising, and allowed prompts."""

from __future__ import annotations

import httpx
import pytest

from tests.e2e.endpoints import END_S
from tests.e2e.system import System
from tests.e2e.test_request_kinds import BODY
from tests.safety_hook import HookProcess

pytestmark = pytest.mark.timeout(900)  # seconds, for the system's start

ALLOWED = "a circle that is allowed"


def test_safety_hook_runs_before_and_after(system: System, hook: HookProcess) -> None:
    with httpx.Client(base_url=system.url, timeout=END_S, trust_env=False) as http:

        def generate(prompt: str) -> httpx.Response:
            body = BODY | {"prompt": prompt}
            return http.post("/v1/generate", json=body, headers={"Prefer": f"wait={END_S}"})

        refused = generate("refuse before")
        assert refused.status_code == 422
        assert refused.json()["error"]["code"] == "refused_by_safety"
        ended = generate("refuse after").json()
        assert (ended["state"], ended["outputs"]) == ("failed", [])
        assert ended["error"]["code"] == "refused_by_safety"
        assert generate(ALLOWED).json()["state"] == "succeeded"
    calls = [(call["request"]["prompt"], call["when"]) for call in hook.questions()]
    assert [call for call in calls if call[0].startswith(("refuse", ALLOWED))] == [
        ("refuse before", "before"),
        ("refuse after", "before"),
        ("refuse after", "after"),
        (ALLOWED, "before"),
        (ALLOWED, "after"),
    ]
