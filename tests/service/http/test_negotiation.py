"""Negotiation by Accept and Prefer headers."""

from __future__ import annotations

import pytest

from service.errors.problems import NotAcceptable
from service.http.negotiation import DEFAULT_WAIT_S, Answer, negotiate, preferred_wait_s

JSON = Answer(())
EVENTS = Answer((), events=True)


@pytest.mark.parametrize(
    ("header", "answer"),
    [
        (None, JSON),
        ("", JSON),
        ("*/*", JSON),
        ("application/json", JSON),
        ("application/*", JSON),
        ("text/html,application/xhtml+xml,*/*;q=0.8", JSON),
        ("text/event-stream", EVENTS),
        ("text/event-stream, application/json;q=0.9", EVENTS),
        ("image/png;q=0.4, application/json;q=0.5", JSON),
        ("IMAGE/PNG", Answer(("image/png",))),
        ("image/webp, image/png", Answer(("image/webp", "image/png"))),
        ("image/webp;q=0.5, image/png", Answer(("image/png", "image/webp"))),
        ("image/png; q=0, image/webp", Answer(("image/webp",))),
        ("video/mp4", Answer(("video/mp4",))),
    ],
)
def test_the_best_answer_is_chosen(header: str | None, answer: Answer) -> None:
    assert negotiate(header) == answer


def test_any_image_type_prefers_png() -> None:
    assert negotiate("image/*").media_types[0] == "image/png"


def test_exact_type_precedes_wildcard() -> None:
    assert negotiate("image/webp, */*").media_types[0] == "image/webp"


@pytest.mark.parametrize("header", ["text/html", "image/tiff", "*/*;q=0", "nonsense"])
def test_unacceptable_types_are_rejected(header: str) -> None:
    with pytest.raises(NotAcceptable):
        negotiate(header)


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ([], None),
        (["respond-async"], None),
        (["wait"], DEFAULT_WAIT_S),
        (["wait=5"], 5),
        (["Wait = 5"], 5),
        (['wait="5"'], 5),
        (["respond-async, wait=10; foo=bar"], 10),
        (["respond-async", "wait=0"], 0),
        (["wait=-1"], None),
        (["wait=5.5"], None),
        (["wait=1e9"], None),
        (["wait=" + "9" * 400], None),
    ],
)
def test_a_preference_to_wait(headers: list[str], wait_s: float | None) -> None:
    assert preferred_wait_s(headers) == wait_s
