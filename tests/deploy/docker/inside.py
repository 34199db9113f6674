"""Program started in new namespaces as root: mounts, changes root and user, then execs a command.

Imports nothing of the project: a bare interpreter runs it, with its order as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def main(order: dict[str, Any]) -> None:
    """Set up the container and exec the command; never returns."""
    root = Path(order["root"])
    _mount("--bind", root, root)
    for source, target, mode in order["mounts"]:
        path = root / target.lstrip("/")
        if mode == "tmpfs":
            _mount("-t", "tmpfs", "-o", "mode=1777,noexec,nosuid,nodev", "tmpfs", path)
        else:
            _mount("--bind", source, path)
            if mode == "ro":
                _mount("-o", "remount,bind,ro", path)
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
