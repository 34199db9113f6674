"""Choice of tests and verdicts in a small tree."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.mutants.__main__ import NIGHTLY, Row, Runner, table
from tests.mutants.choice import Choice
from tests.mutants.faults import Fault

FILES: Mapping[str, str] = {
    "atelier.py": "",
    "models/sums.py": "def total(a, b):\n    return a + b\n",
    "models/registry.py": 'PLACE = ".sums"\n',
    "service/bills.py": "from models.sums import total\n",
    "service/text.lua": "return 1\n",
    "tests/models/test_sums.py": (
        "from models import sums\nimport pytest\n\n"
        "def test_zero():\n    assert sums.total(0, 0) == 0\n\n"
        f"@pytest.mark.{NIGHTLY}\n"
        "def test_order():\n    assert sums.total('a', 'b') == 'ab'\n\n"
        "def test_broken():\n    assert False\n"
    ),
    "tests/service/conftest.py": "from service import bills\n",
    "tests/service/test_text.py": (
        "from pathlib import Path\n\n"
        "def test_one():\n    assert '1' in Path('service/text.lua').read_text()\n"
    ),
    "tests/test_nothing.py": "",
}


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # other plugins take a second each
    monkeypatch.setenv("PYTEST_PLUGINS", "pytest_timeout")
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nmarkers =\n    {NIGHTLY}: long\n")
    return tmp_path


def test_mutants_run_nearby_tests_first_and_only_those(tree: Path) -> None:
    choice = Choice(tree)
    close_test, distant_test = "tests/models/test_sums.py", "tests/service/test_text.py"
    for file, chosen in (
        ("models/sums.py", [close_test, distant_test]),
        ("models/registry.py", []),
        ("service/text.lua", [distant_test]),
    ):
        assert choice.of(Fault("any", file, "", "", "")) == chosen


def test_each_fault_has_its_verdict(tree: Path) -> None:
    runner, tests = Runner(tree, cap_s=30), "tests/models/test_sums.py"
    runner.check([f"{tests}::test_broken", f"{tests}::test_zero"])
    assert runner.unsound == {f"{tests}::test_broken"}
    for after, verdict, test in (
        ("a + b + 1", "gate", f"{tests}::test_zero"),
        ("b + a", "suite", f"{tests}::test_order"),
    ):
        row = runner.row(Fault("any", "models/sums.py", "a + b", after, "sums"))
        assert (row.verdict, row.test) == (verdict, test)
    row = runner.row(Fault("any", "models/sums.py", "def total", "raise OSError\ndef total", "all"))
    assert row.verdict == "unfair"
    assert (tree / "models/sums.py").read_text() == FILES["models/sums.py"]


def test_score_counts_detected_faults() -> None:
    faults = [Fault(name, "models/nn/any.py", "a", "b", "") for name in "abcd"]
    verdicts = {"a": "gate", "b": "suite", "c": "none", "d": "gate"}
    results = {name: Row(name, verdict, "", "", 30.0) for name, verdict in verdicts.items()}
    text = table(faults, results)
    assert "the gate finds 66.7% of what any test finds" in text
    assert "models/nn                    2       1       1       0" in text
