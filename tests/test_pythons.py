"""Search for another Python: the first candidate that runs is used."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.pythons import interpreter

VERSION = "{}.{}".format(*sys.version_info)


def test_broken_candidate_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates: a missing file, a file that is not a program, and a working Python."""
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path / "moved"))
    on_path, pyenv = tmp_path / "path", tmp_path / f"pyenv/versions/{VERSION}.1/bin"
    for folder in (on_path, pyenv):
        folder.mkdir(parents=True)
    broken, working = on_path / f"python{VERSION}", pyenv / f"python{VERSION}"
    broken.write_bytes(b"\0")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(on_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    with pytest.raises(LookupError, match=f"no Python {VERSION} on this machine"):
        interpreter(VERSION)
    working.symlink_to(sys.executable)
    assert interpreter(VERSION) == working
