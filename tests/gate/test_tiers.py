"""Tables of the tiers: every name in them exists, and the recorded costs are within the budget."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import pytest

from tests import tiers
from tests.gate import budget, flaky
from tests.gate.scheduler import group

FILES = [
    *chain(*tiers.KINDS.values()),
    *tiers.CASES,
    *chain(*tiers.GROUPS.values()),
    *tiers.COMPUTING,
]
NAMED = [*tiers.NIGHTLY.items(), *tiers.CASES_OF_TESTS.items(), *tiers.ALONE.items()]


@pytest.mark.parametrize("place", sorted({*FILES, *(file for file, _ in NAMED)}))
def test_places_in_the_tables_exist(place: str) -> None:
    assert (tiers.ROOT / place).exists()


@pytest.mark.parametrize(("file", "names"), [(file, names) for file, names in NAMED if names])
def test_tests_in_the_tables_exist(file: str, names: Iterable[str]) -> None:
    text = (tiers.ROOT / file).read_text()
    missing = [name for name in names if f"def {name.partition('[')[0]}(" not in text]
    assert not missing


def test_recorded_costs_are_within_the_budget() -> None:
    assert budget.problems() == []


def test_few_flaky_tests_are_open() -> None:
    """Mend a test and delete its line before other work."""
    assert len(flaky.lines()) <= flaky.MOST_OPEN


@pytest.mark.parametrize(
    ("nodeid", "expected"),
    [
        ("tests/service/test_keys.py::test_it[flux]", "service/test_keys.py"),
        (
            "tests/families/test_company.py::test_it[bfloat16-flux2]",
            "families/test_company.py flux2",
        ),
        (
            "tests/families/test_drawing.py::test_it[flux-fill-ring 4]",
            "families/test_drawing.py flux",
        ),
        ("tests/families/test_full_size.py::test_it[wan2.1-14b]", "families/test_full_size.py wan"),
        ("tests/families/test_suite.py::test_it", "families/test_suite.py "),
    ],
)
def test_a_family_is_a_group_of_its_own(nodeid: str, expected: str) -> None:
    assert group(nodeid) == expected
