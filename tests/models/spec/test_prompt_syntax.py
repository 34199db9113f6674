"""Weighted prompts: the examples of AUTOMATIC1111's parser, and cases that they omit."""

from __future__ import annotations

import time

import pytest

from models.spec.prompt_syntax import (
    MAX_DEPTH,
    Part,
    escaped,
    has_compositions,
    has_edits,
    has_lost_weights,
    has_numbers,
    passages,
)


def parsed(prompt: str) -> list[list[tuple[str, float]]]:
    return [[(text, round(weight, 9)) for text, weight in passage] for passage in passages(prompt)]


@pytest.mark.parametrize(
    ("prompt", "parts"),
    [
        # Doctests of AUTOMATIC1111.
        ("normal text", [("normal text", 1.0)]),
        ("an (important) word", [("an ", 1.0), ("important", 1.1), (" word", 1.0)]),
        ("(unbalanced", [("unbalanced", 1.1)]),
        (r"\(literal\]", [("(literal]", 1.0)]),
        ("(unnecessary)(parens)", [("unnecessaryparens", 1.1)]),
        (
            "a (((house:1.3)) [on] a (hill:0.5), sun, (((sky))).",
            [
                ("a ", 1.0),
                ("house", 1.573),
                (" ", 1.1),
                ("on", 1.0),
                (" a ", 1.1),
                ("hill", 0.55),
                (", sun, ", 1.1),
                ("sky", 1.4641),
                (".", 1.1),
            ],
        ),
        # Further cases.
        ("", []),
        ("()", []),
        ("((a))", [("a", 1.21)]),
        ("[a]", [("a", round(1 / 1.1, 9))]),
        ("[[a", [("a", round(1 / 1.21, 9))]),
        ("[(a)]", [("a", 1.0)]),
        ("a (b:1.0) c", [("a b c", 1.0)]),
        ("(a:0)", [("a", 0.0)]),
        ("(a:-.5)", [("a", -0.5)]),
        ("(a: +2. )", [("a", 2.0)]),
        ("(a:b:1.5)", [("a:b", 1.5)]),
        ("(a:b)", [("a:b", 1.1)]),
        ("(a:1.2.3)", [("a:1.2.3", 1.1)]),
        ("(a:)", [("a:", 1.1)]),
        ("(1.2)", [("1.2", 1.1)]),
        ("[a:1.2]", [("a:1.2", round(1 / 1.1, 9))]),
        ("a:1.2)", [("a:1.2)", 1.0)]),
        ("a) b] c", [("a) b] c", 1.0)]),
        ("(a [b) c]", [("a ", 1.1), ("b", 1.0), (" c", round(1 / 1.1, 9))]),
        (r"(a\):1.2)", [("a)", 1.2)]),
        (r"\\(a)", [("\\", 1.0), ("a", 1.1)]),
        (r"a\b", [("ab", 1.0)]),
        ("BREAKFAST, a BREAK_", [("BREAKFAST, a BREAK_", 1.0)]),
    ],
)
def test_weights_of_parts(prompt: str, parts: list[tuple[str, float]]) -> None:
    assert parsed(prompt) == [parts]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a BREAK b", [[("a", 1.0)], [("b", 1.0)]]),
        ("a,BREAK\n(b) c", [[("a,", 1.0)], [("b", 1.1), (" c", 1.0)]]),
        ("BREAK a BREAK BREAK", [[], [("a", 1.0)], [], []]),
        ("(a BREAK b:2) c", [[("a", 2.0)], [("b", 2.0), (" c", 1.0)]]),
    ],
)
def test_break_begins_a_passage(prompt: str, expected: list[list[tuple[str, float]]]) -> None:
    assert parsed(prompt) == expected


@pytest.mark.parametrize("prompt", ["(a:101)", "(a:-1000)", "(" * 49 + "a", "((a:99))"])
def test_weights_out_of_range_are_refused(prompt: str) -> None:
    with pytest.raises(ValueError, match="keep weights within -100 and 100"):
        passages(prompt)


def test_brackets_too_deep_are_refused() -> None:
    deepest = "([" * MAX_DEPTH + "a"
    assert passages(deepest)[0][0].text == "a"
    with pytest.raises(ValueError, match="more than 100 brackets"):
        passages("[" + deepest)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a (b:1.2)", True),
        ("a (b:1.2", False),
        ("a (b) [c]", False),
        ("a (scale 1:2)", True),
        (r"a \(b:1.2\)", False),
        ("(" * 200, False),
    ],
)
def test_weights_in_numbers_are_found(prompt: str, expected: bool) -> None:
    assert has_numbers(prompt) == expected


@pytest.mark.parametrize("prompt", ["[a:b:0.5]", "[:b:3]", "[a::.5]", "[a:5]", "([a|b]:1.2)"])
def test_text_for_a_part_of_the_steps_is_found(prompt: str) -> None:
    assert has_edits(prompt)


@pytest.mark.parametrize(
    "prompt", ["[a]", "(a:0.5)", "a|b", "[a: b]", "[a:0.5", r"\[a:0.5\]", "[" * 101]
)
def test_other_text_is_not_prompt_editing(prompt: str) -> None:
    assert not has_edits(prompt)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a (red:1.5", True),
        ("(a (red:1.5) b:1.2", True),
        ("a red:1.5) cat", True),
        (r"a (red\):1.5) cat", False),
        (r"a (red\):1.5", True),
        ("a (red:1.5)", False),
        ("a (red cat", False),
        ("red) :-) cat", False),
        ("ratio 1:2", False),
        ("", False),
        ("(" * 200, False),
    ],
)
def test_weights_of_brackets_without_their_other_half_are_found(
    prompt: str, expected: bool
) -> None:
    assert has_lost_weights(prompt) == expected


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("a AND b", True), ("a:1.2 AND\nb:0.8", True), ("a and b", False), ("SAND ANDY", False)],
)
def test_compositions_are_found(prompt: str, expected: bool) -> None:
    assert has_compositions(prompt) == expected


@pytest.mark.parametrize("prompt", ["a (red:1.2) [star]", r"a\b", ":-)", "((", ""])
def test_an_escaped_prompt_is_the_plain_one(prompt: str) -> None:
    (passage,) = passages(escaped(prompt))
    assert passage == ((Part(prompt, 1.0),) if prompt else ())


@pytest.mark.parametrize("piece", ["(a)", "([", "(a:1.1)[", "\\", "BREAK ", " " * 9, "a:1", ":"])
def test_a_long_prompt_takes_no_quadratic_time(piece: str) -> None:
    start = time.process_time()
    has_numbers(piece * (2**20 // len(piece)))
    assert time.process_time() - start < 20  # a quadratic parser takes hours


def test_parts_are_named() -> None:
    assert passages("(a:2)") == ((Part("a", 2.0),),)
