"""Verdicts: what a hook may answer, in Python and in JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from service.safety.verdict import NO_REASON, SafetyAbsent, verdict_of, verdict_of_json


@pytest.mark.parametrize("answer", [{"allow": False}, {"allow": False, "reason": None}])
def test_a_refusal_without_a_reason_says_that_it_has_none(answer: dict[str, Any]) -> None:
    for verdict in (verdict_of(answer), verdict_of_json(json.dumps(answer).encode())):
        assert (verdict.allow, verdict.reason) == (False, NO_REASON)
    assert verdict_of(False).reason == NO_REASON


def test_a_null_reason_is_no_absent_verdict() -> None:
    """Programs write null where they have none; the policy for absence is another matter."""
    assert verdict_of_json(b'{"allow": true, "reason": null}').allow


@pytest.mark.parametrize("answer", [None, "no", 1, {}, {"allow": "true"}, {"allow": 1}])
def test_what_is_no_verdict_is_an_absent_one(answer: object) -> None:
    with pytest.raises(SafetyAbsent, match="no verdict"):
        verdict_of(answer)
    with pytest.raises(SafetyAbsent, match="no verdict"):
        verdict_of_json(json.dumps(answer).encode())


def test_a_reason_is_one_line() -> None:
    assert verdict_of({"allow": False, "reason": " a\nb\x00 "}).reason == "a b"
    with pytest.raises(SafetyAbsent, match="reason"):
        verdict_of({"allow": False, "reason": 7})
