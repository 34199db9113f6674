"""Demo of `make demo`: `atelier up`, a first image or video of each model, and where it is."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from deploy.local.processes import ATELIER, dies_with_parent, importing_ours

FOLDER = Path(".atelier")


class First(NamedTuple):
    """First output of a model."""

    prompt: str
    file: str
    image: str | None = None
    """File of the image that it changes."""


PICTURE = First("a red circle on a blue background", "first-picture.png")
FIRST = {
    "flux-demo": PICTURE,
    "sdxl-demo": First(PICTURE.prompt, "first-picture-sdxl.png"),
    "wan-demo": First("a red circle moves to the right on a blue background", "first-clip.mp4"),
    "flux-edit-demo": First("make the circle green", "first-edit.png", image=PICTURE.file),
}
"""First output of a demo model as soon as it is ready."""
READY = re.compile(r"^(\S+) is ready at (\S+)")
ALL = "Atelier"
"""Name of the system, ready when all models are."""


def main(arguments: list[str]) -> int:
    """Run `atelier up` with these arguments until it ends; its exit code."""
    system = subprocess.Popen(
        [*ATELIER, "up", *arguments],
        env=importing_ours(os.environ),
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=dies_with_parent(signal.SIGTERM),
    )
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C reaches `up` too, and ends it
    signal.signal(signal.SIGTERM, lambda *_: system.terminate())
    assert system.stdout is not None
    firsts = Firsts()
    for line in system.stdout:
        print(line, end="", flush=True)
        if found := READY.search(line):
            firsts.ready(*found.groups())
    return system.wait()


class Firsts:
    """First outputs of the models as these become ready."""

    def __init__(self) -> None:
        self._asked: set[str] = set()
        self._made: set[str] = set()
        self._waiting: dict[str, str] = {}

    def ready(self, model: str, server: str) -> None:
        """Make the first output of a model that is ready; of the only one, when Atelier is.

        One that changes an image waits for the model that makes it.
        """
        if model not in FIRST and (model != ALL or self._asked):
            return
        first = FIRST.get(model, PICTURE)
        if first.image and first.image not in self._made:
            self._waiting[model] = server
            return
        self._asked.add(model)
        if _make_first(model, server):
            self._made.add(first.file)
        if len(self._asked) == 1:
            print(f"Make more at {server}  (Ctrl-C stops the system)", flush=True)
        for later in [name for name in self._waiting if FIRST[name].image in self._made]:
            self.ready(later, self._waiting.pop(later))


def _make_first(model: str, server: str) -> bool:
    """Make a model's first output; return whether it did."""
    prompt, file, image = FIRST.get(model, PICTURE)
    path = FOLDER / file
    path.parent.mkdir(exist_ok=True)
    chosen = ["--model", model] if model in FIRST else []
    chosen += ["--image", str(FOLDER / image)] if image else []
    command = ["generate", prompt, *chosen, "--server", server, "--output", str(path)]
    if subprocess.run([*ATELIER, *command], env=importing_ours(os.environ)).returncode:
        return False
    kind = "video" if path.suffix == ".mp4" else "image"
    print(f"A first {kind}, {prompt!r}, is in {path.resolve()}", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
