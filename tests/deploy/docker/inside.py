"""Runs in namespaces of its own, as root: mounts, changes root and user, becomes the command.

Stands alone: it is started by a bare interpreter, with what to do as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def main(order: dict[str, Any]) -> None:
    """Never returns."""
    root = Path(order["root"])
    _mount("--bind", root, root)
    for source, target, how in order["mounts"]:
        at = root / target.lstrip("/")
        if how == "tmpfs":
            _mount("-t", "tmpfs", "-o", "mode=1777,noexec,nosuid,nodev", "tmpfs", at)
        else:
            _mount("--bind", source, at)
            if how == "ro":
                _mount("-o", "remount,bind,ro", at)
    _mount("-t", "proc", "proc", root / "proc")
    if order["read_only"]:
        _mount("-o", "remount,bind,ro", root)
    os.chroot(root)
    os.chdir(order["workdir"])
    os.setgroups([])
    os.setgid(order["user"])
    os.setuid(order["user"])
    os.execvpe(order["command"][0], order["command"], order["environment"])


def _mount(*arguments: str | Path) -> None:
    subprocess.run(["mount", *map(str, arguments)], check=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
