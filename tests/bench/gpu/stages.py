"""What `make gpu` runs, in order of worth, and for how long at most."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

FAMILIES = ("flux", "sdxl", "wan")
REPEATS = "3"
BATCHINGS = ("exact", "fast")
"""What serves by default does without XLA's tuner on GPUs, so that every process has the same bits;
the second turn tells what that costs."""
MODELS: Mapping[str, Sequence[str]] = {
    "flux-dev": (),
    "sdxl": (),
    "wan2.1-1.3b": ("--steps", "10"),
}
"""Model → options. A step of Wan takes seconds: ten tell its time as well as fifty."""


@dataclass(frozen=True)
class Stage:
    """One process. It writes its result to a file of its name, more than once if it can."""

    name: str
    words: Sequence[str]
    limit_s: float
    """It is ended then; what it has written by then counts."""
    least_s: float
    """It is not begun with less than this."""

    def command(self, folder: Path) -> list[str]:
        return [sys.executable, "-m", *self.words, "--json", str(self.file(folder))]

    def file(self, folder: Path) -> Path:
        return folder / f"{self.name}.json"


def stages(folder: Path, *, rehearsal: bool) -> tuple[Stage, ...]:
    """Right pixels first: speed without them is worth nothing. Every model as it serves by default
    before any by larger means.

    Args:
        folder: where compiled programs are kept between stages.
        rehearsal: tiny networks, and diffusers without torch.compile, which takes a CPU minutes.
    """
    options = ("--eager",) if rehearsal else ("--compile-cache", str(folder / "compiled"))
    return (
        *(pixels(family, "float32") for family in FAMILIES),
        *(pixels(family, "bfloat16") for family in FAMILIES),
        *(compare(model, batching, *options) for batching in BATCHINGS for model in MODELS),
    )


def pixels(family: str, dtype: str) -> Stage:
    words = ("tests.bench.gpu.pixels", family, "--dtype", dtype)
    return Stage(f"pixels-{family}-{dtype}", words, limit_s=240, least_s=30)


def compare(model: str, batching: str, *options: str) -> Stage:
    words = ("tests.bench.against", model, "--batching", batching, "--turns", "1")
    words = (*words, "--repeats", REPEATS, *MODELS[model], *options)
    return Stage(f"speed-{model}-{batching}", words, limit_s=600, least_s=120)
