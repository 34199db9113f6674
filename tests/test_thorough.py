"""What `make test` leaves out is there: a name that nothing has would leave nothing out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.thorough import CASES, NAMED

ROOT = Path(__file__).parent


@pytest.mark.parametrize("place", CASES)
def test_the_files_are_there(place: str) -> None:
    assert (ROOT / place).exists()


@pytest.mark.parametrize("file", NAMED)
def test_the_tests_are_there(file: str) -> None:
    text = (ROOT / file).read_text()
    for name in NAMED[file]:
        assert f"def {name.partition('[')[0]}(" in text, name
