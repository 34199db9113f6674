"""Source of the last release's code, and messages if it is missing."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.skew.last_release import NotHere, WrongCommit, extract

WHO = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")


def git(folder: Path, *words: str) -> str:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(
        ["git", "-C", str(folder), *WHO, *words], env=plain, check=True, capture_output=True
    )
    return done.stdout.decode().strip()


def commit(repository: Path, text: str) -> str:
    (repository / "a.py").write_text(text)
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "--message", text)
    return git(repository, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A history of two commits."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "--quiet")
    commit(folder, "one")
    commit(folder, "two")
    return folder


def test_the_code_is_that_of_the_commit(repository: Path, tmp_path: Path) -> None:
    first = git(repository, "rev-parse", "HEAD~")
    code = extract(tmp_path / "code", repository, first)
    assert (code / "a.py").read_text() == "one"
    git(repository, "worktree", "add", "--quiet", str(tmp_path / "tree"))
    assert extract(tmp_path / "more", tmp_path / "tree", first).is_dir()


def test_a_shallow_clone_lacks_it(repository: Path, tmp_path: Path) -> None:
    first = git(repository, "rev-parse", "HEAD~")
    git(tmp_path, "clone", "--quiet", "--depth", "1", f"file://{repository}", "shallow")
    with pytest.raises(NotHere, match="--unshallow"):
        extract(tmp_path / "code", tmp_path / "shallow", first)
    git(tmp_path / "shallow", "fetch", "--quiet", "--unshallow")
    assert extract(tmp_path / "code", tmp_path / "shallow", first).is_dir()


@pytest.mark.parametrize("wrong", ["", "HEAD", "v1.0.0", "0" * 12])
def test_a_commit_has_its_whole_name(tmp_path: Path, wrong: str) -> None:
    """The name is checked first, even without a history."""
    with pytest.raises(WrongCommit, match="40 digits"):
        extract(tmp_path / "code", tmp_path, wrong)


def test_an_archive_has_no_history(tmp_path: Path) -> None:
    with pytest.raises(NotHere, match="no clone"):
        extract(tmp_path / "code", tmp_path, "0" * 40)


def test_wrong_commit_is_not_skipped(repository: Path, tmp_path: Path) -> None:
    head = git(repository, "rev-parse", "HEAD")
    git(repository, "checkout", "--quiet", "--orphan", "other")
    other = commit(repository, "three")
    git(repository, "checkout", "--quiet", head)
    with pytest.raises(WrongCommit, match="no such commit"):
        extract(tmp_path / "code", repository, "0" * 40)
    with pytest.raises(WrongCommit, match="does not follow"):
        extract(tmp_path / "code", repository, other)
