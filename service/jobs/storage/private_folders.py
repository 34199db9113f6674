"""Folders that this user alone can read: queue, outputs, compiled programs.

They hold every tenant's prompts and images, and programs are code that pools run.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from service.settings.section import ConfigError

OTHERS = 0o077
"""Mode bits of everybody but the owner."""

log = logging.getLogger(__name__)


def be_private() -> None:
    """Set a umask that leaves what this process and its children make to their user alone."""
    os.umask(OTHERS)


def private_folder(folder: Path, setting: str, *, deep: bool = True) -> bool:
    """Make the folder, or take everybody else's rights from one that is there, and say so.

    Returns whether others had any.

    A folder of root's is left as it is: volumes are mounted so.

    Args:
        setting: that names it, for messages.
        deep: with all that is in it.

    Raises: OSError; ConfigError: it belongs to another user.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid not in (0, os.geteuid()):
        raise ConfigError(
            f"{setting}: {folder} belongs to another user (uid {found.st_uid}), who may read and"
            " change what is in it; take another folder, or give it to this user (chown -R)"
        )
    if not found.st_mode & OTHERS:
        return False
    try:
        for path in [folder, *(_below(folder) if deep else ())]:
            _narrow(path)
    except OSError as error:
        log.warning("%s: other users may read %s: %s", setting, folder, error.strerror)
    else:
        mode = stat.S_IMODE(found.st_mode)
        log.warning("%s: other users could read %s (%o); now it is private", setting, folder, mode)
    return True


def check_own(found: os.stat_result, path: Path) -> None:
    """Check who may write to a file or folder.

    Raises: PermissionError: others than this user and root may have written it.
    """
    if found.st_uid not in (0, os.geteuid()) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"{path} belongs to another user, or others may write to it")


def _below(folder: Path) -> Iterator[Path]:
    for root, folders, files in os.walk(folder):
        yield from (Path(root, name) for name in [*folders, *files])


def _narrow(path: Path) -> None:
    """Raises: OSError: it is not ours."""
    try:
        mode = path.lstat().st_mode
        if mode & OTHERS and not stat.S_ISLNK(mode):
            path.chmod(stat.S_IMODE(mode) & ~OTHERS)
    except FileNotFoundError:  # deleted meanwhile
        return
