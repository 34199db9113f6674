"""Retries, exit code and report of the gate."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gate import changed
from tests.gate.__main__ import HERE, MAX_RETRIES, Results, retry, run, verdict
from tests.gate.groups import Group
from tests.gate.selection import Selection

FLAKY = """
from pathlib import Path

def test_passes():
    pass

def test_passes_the_second_time():
    ran = Path("ran")
    assert ran.exists() or ran.write_text("") is not None and False, "the machine was slow"
"""
BROKEN = "def test_fails():\n    assert 1 == 2\n"
MANY = """
import pytest

@pytest.mark.parametrize("n", range({}))
def test_fails(n):
    assert n < 0
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder for another project's tests, whose pytest finds the gate's plugins."""
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # other plugins take a second each
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def outcome(folder: Path, **files: str) -> tuple[Results, dict[str, str]]:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    results = Results()
    groups = [Group((f"{name}.py",)) for name in files]
    run(Selection("tests", 1, groups, "", hook=True), results, folder=folder)
    return results, retry(results, folder)


def test_a_test_that_passes_again_is_reported(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, retried = outcome(folder, test_flaky=FLAKY)
    assert [*retried] == ["test_flaky.py::test_passes_the_second_time"]
    assert "the machine was slow" in retried["test_flaky.py::test_passes_the_second_time"]
    assert verdict(results, retried) == 0
    assert "1 passed, 0 failed, flaky: 1" in capsys.readouterr().out


def test_a_test_that_fails_again_fails_the_gate(folder: Path) -> None:
    results, retried = outcome(folder, test_broken=BROKEN, test_flaky=FLAKY)
    assert [*results.failed] == ["test_broken.py::test_fails"] and len(retried) == 1
    assert verdict(results, retried) == 1


def test_more_failures_than_flakes_are_not_retried(folder: Path) -> None:
    results, retried = outcome(folder, test_many=MANY.format(MAX_RETRIES + 1))
    assert len(results.failed) == MAX_RETRIES + 1 and not retried
    assert verdict(results, retried) == 1


def test_a_file_that_cannot_be_imported_fails_the_gate(folder: Path) -> None:
    results, retried = outcome(folder, test_flaky=FLAKY, test_bad="import nowhere")
    assert "test_bad.py" in results.broken and not retried
    assert verdict(results, retried) == 1


def test_a_test_that_kills_its_process_fails_the_gate_and_nothing_else(folder: Path) -> None:
    killing = "import os, signal\ndef test_it():\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    results, retried = outcome(folder, test_killing=killing, test_flaky=FLAKY)
    (broken,) = results.broken
    assert "exit code -9 in test_killing.py::test_it" in broken and not retried


def test_cpu_time_is_counted_by_test(folder: Path) -> None:
    busy = """
from time import process_time
def test_it():
    until = process_time() + 0.6
    while process_time() < until:
        pass
"""
    results, _ = outcome(folder, test_busy=busy, test_idle="def test_it():\n    pass\n")
    assert results.cpu_s["test_busy.py::test_it"] > 0.3
    assert results.cpu_s["test_idle.py::test_it"] < 0.3


def test_failures_are_counted_by_round(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changed, "ROUNDS", 1)
    monkeypatch.setattr(changed, "BUSY_ROUNDS", 1)
    monkeypatch.setattr(changed, "LOOPS", 0)
    (folder / "test_broken.py").write_text(BROKEN)
    (folder / "test_flaky.py").write_text(FLAKY)
    failed = changed.repeat([Group(("test_broken.py",)), Group(("test_flaky.py",))], folder)
    rounds = {test: count for (test, _), count in failed.items()}
    assert rounds == {
        "test_broken.py::test_fails": 2,
        "test_flaky.py::test_passes_the_second_time": 1,
    }
