"""Folders that only this user can access: queue, outputs, compiled programs.

They contain every tenant's prompts and images. Compiled programs are code that workers execute.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from service.settings.section import ConfigError

OTHERS = 0o077
"""Mode bits of group and others."""

log = logging.getLogger(__name__)


def be_private() -> None:
    """Set the umask so that new files of this process and its children are private to the user."""
    os.umask(OTHERS)


def private_folder(folder: Path, setting: str, *, deep: bool = True) -> bool:
    """Create a folder, or remove access rights of other users from an existing one and log it.

    Folders of root are left unchanged, since volumes are mounted as root.

    Args:
        setting: name of the setting with the folder, for messages.
        deep: whether to include everything in the folder.

    Returns: True if other users had access.

    Raises: OSError; ConfigError: the folder belongs to another user.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid not in (0, os.geteuid()):
        raise ConfigError(
            f"{setting}: {folder} belongs to another user (uid {status.st_uid}), who may read and"
            " change what is in it; use another folder, or change its owner (chown -R)"
        )
    if not status.st_mode & OTHERS:
        return False
    try:
        for path in [folder, *(_below(folder) if deep else ())]:
            _narrow(path)
    except OSError as error:
        log.warning("%s: other users may read %s: %s", setting, folder, error.strerror)
    else:
        mode = stat.S_IMODE(status.st_mode)
        log.warning("%s: other users could read %s (%o); now it is private", setting, folder, mode)
    return True


def check_owner(status: os.stat_result, path: Path) -> None:
    """Check that only this user and root can write to a file or folder.

    Raises: PermissionError: other users may have written it.
    """
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"{path} belongs to another user, or others may write to it")


def _below(folder: Path) -> Iterator[Path]:
    for root, folders, files in os.walk(folder):
        yield from (Path(root, name) for name in [*folders, *files])


def _narrow(path: Path) -> None:
    """Remove other users' rights from a file or folder.

    Raises: OSError: this user is not its owner.
    """
    try:
        mode = path.lstat().st_mode
        if mode & OTHERS and not stat.S_ISLNK(mode):
            path.chmod(stat.S_IMODE(mode) & ~OTHERS)
    except FileNotFoundError:  # deleted meanwhile
        return
