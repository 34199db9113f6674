"""Demo of `make demo`: runs `atelier up`, and generates a first output with each model."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from deploy.local.processes import ATELIER, dies_with_parent, importing_atelier
from deploy.local.running import ALL, READY

FOLDER = Path(".atelier")


class FirstOutput(NamedTuple):
    """First output of a demo model: prompt, file and input image."""

    prompt: str
    file: str
    image: str | None = None
    """File of the image to edit."""


DEFAULT_OUTPUT = FirstOutput("a red circle on a blue background", "first-picture.png")
FIRST_OUTPUTS = {
    "flux-demo": DEFAULT_OUTPUT,
    "sdxl-demo": FirstOutput(DEFAULT_OUTPUT.prompt, "first-picture-sdxl.png"),
    "wan-demo": FirstOutput(
        "a red circle moves to the right on a blue background", "first-clip.mp4"
    ),
    "flux-edit-demo": FirstOutput(
        "make the circle green", "first-edit.png", image=DEFAULT_OUTPUT.file
    ),
}
"""First output of each demo model, generated when it is ready."""


def main(arguments: list[str]) -> int:
    """Run `atelier up` with these arguments; return its exit code."""
    system = subprocess.Popen(
        [*ATELIER, "up", *arguments],
        env=importing_atelier(os.environ),
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=dies_with_parent(signal.SIGTERM),
    )
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C also reaches `up`, which then exits
    signal.signal(signal.SIGTERM, lambda *_: system.terminate())
    assert system.stdout is not None
    first_outputs = FirstOutputs()
    for line in system.stdout:
        print(line, end="", flush=True)
        if match := READY.search(line):
            first_outputs.ready(*match.groups())
    return system.wait()


class FirstOutputs:
    """Generation of the models' first outputs as they become ready."""

    def __init__(self) -> None:
        self._requested_models: set[str] = set()
        self._made: set[str] = set()
        self._waiting: dict[str, str] = {}

    def ready(self, model: str, server: str) -> None:
        """Generate a ready model's first output; for "Atelier" (all) only if there is none."""
        if model not in FIRST_OUTPUTS and (model != ALL or self._requested_models):
            return
        first = FIRST_OUTPUTS.get(model, DEFAULT_OUTPUT)
        if first.image and first.image not in self._made:
            self._waiting[model] = server
            return
        self._requested_models.add(model)
        if _make_first(model, server):
            self._made.add(first.file)
        if len(self._requested_models) == 1:
            print(f"Make more at {server}  (Ctrl-C stops the system)", flush=True)
        for later in [name for name in self._waiting if FIRST_OUTPUTS[name].image in self._made]:
            self.ready(later, self._waiting.pop(later))


def _make_first(model: str, server: str) -> bool:
    """Generate a model's first output; return whether it succeeded."""
    prompt, file, image = FIRST_OUTPUTS.get(model, DEFAULT_OUTPUT)
    path = FOLDER / file
    path.parent.mkdir(exist_ok=True)
    chosen = ["--model", model] if model in FIRST_OUTPUTS else []
    chosen += ["--image", str(FOLDER / image)] if image else []
    command = ["generate", prompt, *chosen, "--server", server, "--output", str(path)]
    if subprocess.run([*ATELIER, *command], env=importing_atelier(os.environ)).returncode:
        return False
    kind = "video" if path.suffix == ".mp4" else "image"
    print(f"A first {kind}, {prompt!r}, is in {path.resolve()}", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
