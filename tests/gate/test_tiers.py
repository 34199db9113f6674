"""Tables of the tiers: every name in them exists, and the recorded costs are within the budget."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from itertools import chain

import pytest

from tests import tiers
from tests.gate import budget, flaky
from tests.gate.groups import family_of, in_groups

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
    """Fix a test and delete its line before other work."""
    assert len(flaky.lines()) <= flaky.MAX_OPEN


@pytest.mark.parametrize(
    ("test", "family"),
    [
        ("test_it[bfloat16-flux2]", "flux2"),
        ("test_it[flux-fill-ring 4]", "flux"),
        ("test_it[wan2.1-14b]", "wan"),
        ("test_it", ""),
    ],
)
def test_a_family_is_a_group_of_its_own(test: str, family: str) -> None:
    assert family_of(test) == family


def test_each_test_is_in_one_group() -> None:
    files = [
        tiers.ROOT / name for name in ("families/test_batch_invariance.py", "service/test_keys.py")
    ]
    shared = [tiers.ROOT / file for file in tiers.GROUPS["wheel"]]
    groups = in_groups([*files, *shared])
    for name in ("test_it[bfloat16-flux2]", "test_it"):
        assert [group.has(name) for group in groups if len(group.files) == 1].count(True) == 2
    assert [len(group.files) for group in groups if group.family is None] == [3, 1]


def test_shapes_of_all_annotated_modules_are_checked() -> None:
    """Full package names count: `models.flux` is not `models.flux2`."""
    options = tomllib.loads((tiers.ROOT.parent / "pyproject.toml").read_text())
    (option,) = (
        option.removeprefix("--jaxtyping-packages=")
        for option in options["tool"]["pytest"]["ini_options"]["addopts"]
        if option.startswith("--jaxtyping-packages=")
    )
    *checked, checker = option.split(",")
    annotated = {
        ".".join(file.relative_to(tiers.ROOT.parent).with_suffix("").parts)
        for file in (tiers.ROOT.parent / "models").rglob("*.py")
        if "jaxtyping import" in file.read_text()
    }
    assert checker == "beartype.beartype"
    unchecked = {name for name in annotated if not any(_contains(p, name) for p in checked)}
    assert unchecked == set()


def _contains(package: str, module: str) -> bool:
    return f"{module}.".startswith(f"{package}.")
