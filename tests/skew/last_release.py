"""Code of the last release from the repository's history.

`last_release.txt` names its commit. It runs with the packages installed here.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import tarfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMED = Path(__file__).with_name("last_release.txt")


class NotHere(Exception):
    """The history is missing, as in a source archive or shallow clone; the message has the
    remedy."""


class WrongCommit(Exception):
    """`last_release.txt` does not name a commit of this history."""


def extract(folder: Path, root: Path = ROOT, commit: str | None = None) -> Path:
    """Write the last release's files to a folder and return it.

    Args:
        root: folder of the repository.
        commit: commit of the release; None: the one in `last_release.txt`.
    Raises: NotHere, WrongCommit.
    """
    commit = NAMED.read_text().strip() if commit is None else commit
    _check(root, commit)
    archive = _git(root, "archive", "--format=tar", commit)
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    return folder


def _check(root: Path, commit: str) -> None:
    if not re.fullmatch("[0-9a-f]{40}", commit):
        raise WrongCommit(f"{NAMED.name} names {commit!r}: it wants all 40 digits of a commit")
    if not (root / ".git").exists():
        raise NotHere(f"{root} is no clone: the last release is in the repository's history")
    is_shallow = _says(root, "rev-parse", "--is-shallow-repository") == "true"
    if _says(root, "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}") != commit:
        if is_shallow:
            raise NotHere(f"a shallow clone has no {commit}: `git fetch --unshallow` gets it")
        raise WrongCommit(f"{NAMED.name} names {commit}: there is no such commit")
    if not is_shallow and _says(root, "merge-base", commit, "HEAD") != commit:
        raise WrongCommit(f"{NAMED.name} names {commit}, which this version does not follow")


def _says(root: Path, *words: str) -> str:
    """Return git's output; empty if it fails."""
    try:
        return _git(root, *words).decode().strip()
    except subprocess.CalledProcessError:
        return ""


def _git(root: Path, *words: str) -> bytes:
    """Run git in a folder, ignoring a hook's GIT_ variables.

    Raises: NotHere: git is not installed. CalledProcessError.
    """
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    # The clone may belong to another user, as in a container.
    command = ["git", "-c", f"safe.directory={root}", "-C", str(root), *words]
    try:
        return subprocess.run(command, env=variables, check=True, capture_output=True).stdout
    except FileNotFoundError:
        raise NotHere("git is not installed, which has the last release's code") from None
