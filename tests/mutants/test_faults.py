"""Faults are current: each still has its place, and the result parses."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.mutants.faults import Fault, StaleFault, read

ROOT = Path(__file__).parents[2]
FAULTS = read()
MIN_FAULTS = 50
ROOMS = {"deploy", "models", "service", "tools", "workers"}


def test_every_folder_has_enough_faults() -> None:
    assert len(FAULTS) >= MIN_FAULTS
    assert {fault.file.partition("/")[0] for fault in FAULTS} == ROOMS


def test_no_two_have_the_same_name() -> None:
    assert [
        name for name, count in Counter(fault.id for fault in FAULTS).items() if count > 1
    ] == []


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_fault_applies_and_parses(fault: Fault) -> None:
    text = (ROOT / fault.file).read_text("utf-8")
    changed = fault.applied(text)
    assert changed != text
    if fault.file.endswith(".py"):
        ast.parse(changed)


def test_outdated_fault_is_detected() -> None:
    fault = Fault("sign", "any.py", "a + b", "a - b", "nothing")
    assert fault.applied("x = a + b\n") == "x = a - b\n"
    for text in ("x = a * b\n", "x = a + b\ny = a + b\n"):
        with pytest.raises(StaleFault, match=r"sign: any\.py"):
            fault.applied(text)
