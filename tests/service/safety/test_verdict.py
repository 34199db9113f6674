"""Verdicts: valid responses of a hook, in Python and in JSON."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from service.safety.verdict import NO_REASON, NoVerdict, verdict_of, verdict_of_json


@pytest.mark.parametrize("answer", [{"allow": False}, {"allow": False, "reason": None}])
def test_refusal_without_reason_has_a_default_message(answer: dict[str, Any]) -> None:
    for verdict in (verdict_of(answer), verdict_of_json(json.dumps(answer).encode())):
        assert (verdict.allow, verdict.reason) == (False, NO_REASON)
    assert verdict_of(False).reason == NO_REASON


@pytest.mark.parametrize("allow", [True, False])
def test_a_comparison_of_numpy_is_a_verdict(allow: bool) -> None:
    compared = np.float32(0.9 if allow else 0.1) > 0.5
    assert type(compared) is np.bool_
    assert verdict_of(compared).allow is verdict_of({"allow": compared}).allow is allow


def test_null_reason_is_a_valid_verdict() -> None:
    """Programs write null for a missing reason, so the policy for missing verdicts does not
    apply."""
    assert verdict_of_json(b'{"allow": true, "reason": null}').allow


@pytest.mark.parametrize("answer", [None, "no", 1, {}, {"allow": "true"}, {"allow": 1}])
def test_invalid_response_is_an_absent_verdict(answer: object) -> None:
    with pytest.raises(NoVerdict, match="no verdict"):
        verdict_of(answer)
    with pytest.raises(NoVerdict, match="no verdict"):
        verdict_of_json(json.dumps(answer).encode())


def test_a_reason_is_one_line() -> None:
    assert verdict_of({"allow": False, "reason": " a\nb\x00 "}).reason == "a b"
    with pytest.raises(NoVerdict, match="reason"):
        verdict_of({"allow": False, "reason": 7})


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"allow": false, "allow": true}', "twice|repeated"),
        (b'{"allow": true, "allow": true}', "twice|repeated"),
        (b"[true]", "object"),
        (b"nothing", "no verdict"),
        (b"\xff", "no verdict"),
    ],
)
def test_contradictory_verdict_is_no_verdict(body: bytes, said: str) -> None:
    with pytest.raises(NoVerdict, match=said):
        verdict_of_json(body)
