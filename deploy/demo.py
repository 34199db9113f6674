"""What `make demo` runs: `atelier up`, a first picture, and where both are to be found."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import atelier
from deploy.children import dies_with_parent

PROMPT = "a red circle on a blue background"
PICTURE = Path(".atelier") / "first-picture.png"
READY = re.compile(r"Atelier is ready at (\S+)")


def main(arguments: list[str]) -> int:
    """Run `atelier up` with these arguments until it ends; its exit code."""
    system = subprocess.Popen(
        [sys.executable, "-m", "atelier", "up", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=dies_with_parent(signal.SIGTERM),
    )
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C reaches `up` too, and ends it
    signal.signal(signal.SIGTERM, lambda *_: system.terminate())
    assert system.stdout is not None
    for line in system.stdout:
        print(line, end="", flush=True)
        if found := READY.search(line):
            _first_picture(found[1])
    return system.wait()


def _first_picture(server: str) -> None:
    PICTURE.parent.mkdir(exist_ok=True)
    code = atelier.main(["generate", PROMPT, "--server", server, "--output", str(PICTURE)])
    if code == 0:
        print(f"A first picture, {PROMPT!r}, is in {PICTURE.resolve()}")
    print(f"Make more at {server}  (Ctrl-C stops the system)", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
