"""Safety checks by a real hook process: verdicts, missing verdicts, fairness; and by a Python
function."""

from __future__ import annotations

import asyncio
import base64
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from pydantic import ValidationError

from service.jobs.model.metrics import SafetyMetrics
from service.safety.checker import SafetyChecker
from service.safety.safety_check import SafetyCheck, ShownImage
from service.safety.verdict import NoVerdict, SafetyBusy, SafetyRefused
from service.settings.safety import SafetySettings
from service.settings.section import ConfigError
from tests.safety_hook import HookProcess, hook_process

SOON_S = 0.3
"""Time limit of a check whose hook never responds."""
PATIENT_S = 30.0
"""Time limit of a check whose hook responds, on a busy machine."""


@pytest.fixture(scope="module")
def hook() -> Iterator[HookProcess]:
    with hook_process() as hook:
        yield hook


def question(prompt: str, *images: ShownImage) -> SafetyCheck:
    return SafetyCheck("before", "acme", "flux", {"prompt": prompt}, images)


def checker(
    slot_timeout_s: float | None = None, **settings: Any
) -> tuple[SafetyChecker, SafetyMetrics]:
    metrics = SafetyMetrics(CollectorRegistry(), "before")
    safety = SafetySettings(**{"timeout_s": PATIENT_S, **settings})
    return SafetyChecker(safety, metrics, slot_timeout_s), metrics


def count(metrics: SafetyMetrics, verdict: str) -> float:
    return metrics.checks.labels("before", verdict)._value.get()


async def test_allowed_request_continues_and_the_hook_gets_all_of_it(hook: HookProcess) -> None:
    checks, metrics = checker(url=hook.url, token="t0ken")
    image = ShownImage("image", "image/png", b"pixels")
    await checks.check(question("a hat", image), "acme")
    received = hook.questions()[-1]
    assert received["authorization"] == "Bearer t0ken"
    assert (received["when"], received["tenant"], received["model"]) == ("before", "acme", "flux")
    (shown_image,) = received["images"]
    assert (shown_image["field"], base64.b64decode(shown_image["data"])) == ("image", b"pixels")
    assert count(metrics, "allowed") == 1
    await checks.close()


async def test_a_refusal_has_the_hooks_reason_in_one_line(hook: HookProcess) -> None:
    checks, metrics = checker(url=hook.url)
    with pytest.raises(SafetyRefused, match=r"^it shows a secret$"):
        await checks.check(question("refuse"), "acme")
    assert count(metrics, "refused") == 1
    await checks.close()


@pytest.fixture
def one_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """End a check after its first attempt instead of its time limit."""
    monkeypatch.setattr(SafetyChecker, "_pauses_s", lambda self: iter([0.0]))


@pytest.mark.parametrize(
    ("prompt", "said", "timeout_s"),
    [
        ("slow", "no response", SOON_S),
        ("garbage", "no verdict", PATIENT_S),
        ("error", "responded with 500", PATIENT_S),
    ],
)
@pytest.mark.usefixtures("one_try")
async def test_without_a_verdict_the_policy_decides(
    hook: HookProcess, prompt: str, said: str, timeout_s: float
) -> None:
    refusing, metrics = checker(url=hook.url, timeout_s=timeout_s)
    with pytest.raises(NoVerdict, match=said):
        await refusing.check(question(prompt), "acme")
    assert count(metrics, "absent") == 1
    allowing, metrics = checker(url=hook.url, timeout_s=timeout_s, when_absent="allow")
    await allowing.check(question(prompt), "acme")
    assert count(metrics, "absent") == 1
    await refusing.close()
    await allowing.close()


async def test_unreachable_hook_gives_no_verdict_and_is_retried() -> None:
    with hook_process() as first:
        checks, _ = checker(url=first.url)
        port = int(first.url.split(":")[2].split("/")[0])
        first.kill()
    check = asyncio.create_task(checks.check(question("a hat"), "acme"))
    with hook_process(port):
        await check
    hasty, _ = checker(url=first.url, timeout_s=SOON_S)
    with pytest.raises(NoVerdict):
        await hasty.check(question("a hat"), "acme")
    await checks.close()
    await hasty.close()


async def test_a_verdict_after_an_error_counts(hook: HookProcess) -> None:
    checks, metrics = checker(url=hook.url)
    await checks.check(question("flaky one"), "acme")
    assert count(metrics, "allowed") == 1
    await checks.close()


async def test_slow_checks_of_one_client_leave_slots_for_others(hook: HookProcess) -> None:
    """The client's next check is rejected as busy; a full queue lets no request through
    unchecked."""
    checks, _ = checker(url=hook.url, max_checks=4, slot_timeout_s=SOON_S, when_absent="allow")
    slow = [asyncio.create_task(checks.check(question("slow"), "acme")) for _ in range(2)]
    await asyncio.sleep(0)  # each has its slot
    with pytest.raises(SafetyBusy):
        await checks.check(question("a hat"), "acme")
    await checks.check(question("a hat"), "another")
    assert not any(task.done() for task in slow)
    for task in slow:
        task.cancel()
    await asyncio.gather(*slow, return_exceptions=True)
    await checks.check(question("a hat"), "acme")
    await checks.close()


ends = threading.Event()


def function(question: dict[str, Any]) -> object:
    """Safety hook in Python, which the tests name by this module."""
    match question["request"]["prompt"]:
        case "refuse":
            return {"allow": False, "reason": question["images"][0]["data"].decode()}
        case "hang":
            ends.wait()
        case "fail":
            raise ZeroDivisionError
        case "exit":
            sys.exit("no verdict today")
        case "garbage":
            return "perhaps"
    return True


NAME = f"{__name__}:function"


async def test_python_function_runs_in_process() -> None:
    checks, _ = checker(check=NAME)
    await checks.check(question("a hat"), "acme")
    image = ShownImage("image", "image/png", b"seen")
    with pytest.raises(SafetyRefused, match="seen"):
        await checks.check(question("refuse", image), "acme")


@pytest.mark.parametrize(
    ("prompt", "said"), [("fail", "ZeroDivisionError"), ("garbage", "no verdict")]
)
@pytest.mark.usefixtures("one_try")
async def test_a_function_without_a_verdict_is_absent(prompt: str, said: str) -> None:
    checks, _ = checker(check=NAME)
    with pytest.raises(NoVerdict, match=said):
        await checks.check(question(prompt), "acme")


@pytest.mark.usefixtures("one_try")
async def test_hook_function_that_exits_releases_its_slot() -> None:
    checks, _ = checker(check=NAME, max_checks=1)
    for _ in range(2):
        with pytest.raises(NoVerdict, match="SystemExit"):
            await checks.check(question("exit"), "acme")
    await checks.check(question("a hat"), "acme")


async def test_hanging_hook_function_keeps_its_slot() -> None:
    checks, _ = checker(check=NAME, timeout_s=SOON_S, max_checks=1)
    try:
        with pytest.raises(NoVerdict):
            await checks.check(question("hang"), "acme")
        with pytest.raises(NoVerdict, match="still running"):
            await checks.check(question("a hat"), "acme")
    finally:
        ends.set()
    patient, _ = checker(check=NAME, max_checks=1)
    await patient.check(question("a hat"), "acme")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_such_module:f", "a folder of PYTHONPATH"),
        ("json:no_such", "cannot be imported"),
        ("json:__name__", "is not a function"),
        ("asyncio:sleep", "is async"),
    ],
)
def test_invalid_function_stops_the_start(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=rf"safety\.check: '{name}'.*{said}"):
        checker(check=name)


def test_two_hooks_are_one_too_many() -> None:
    with pytest.raises(ValidationError, match="not both"):
        SafetySettings(url="http://hook", check="a:b")
    with pytest.raises(ValidationError):
        SafetySettings(url="ftp://hook")
