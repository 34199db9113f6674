"""Stages of `make -C lab gpu` in order of importance, with their time limits."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

FAMILIES = ("flux", "sdxl", "wan")
REPEATS = "3"
BATCHINGS = ("exact", "fast")
"""Batching modes. The default avoids XLA's autotuner on GPUs so that every process has the same
bits; the second mode measures the cost."""
MODELS: Mapping[str, Sequence[str]] = {
    "flux-dev": (),
    "sdxl": (),
    "wan2.1-1.3b": ("--steps", "10"),
}
"""Options by model. A step of Wan takes seconds; ten steps suffice to measure it."""


@dataclass(frozen=True)
class Stage:
    """A process that writes its result to a file named after it, repeatedly if possible."""

    name: str
    words: Sequence[str]
    limit_s: float
    """Time limit; results written until then count."""
    least_s: float
    """Least remaining time to start."""

    def command(self, folder: Path) -> list[str]:
        return [sys.executable, "-m", *self.words, "--json", str(self.file(folder))]

    def file(self, folder: Path) -> Path:
        return folder / f"{self.name}.json"


def stages(folder: Path, *, rehearsal: bool) -> tuple[Stage, ...]:
    """List the stages: pixels first, then every model with default batching, then with fast
    batching.

    Args:
        folder: where compiled programs are stored between stages.
        rehearsal: tiny networks, and diffusers without torch.compile, which takes minutes on a CPU.
    """
    options = ("--eager",) if rehearsal else ("--compile-cache", str(folder / "compiled"))
    return (
        *(pixels(family, "float32") for family in FAMILIES),
        *(pixels(family, "bfloat16") for family in FAMILIES),
        *(compare(model, batching, *options) for batching in BATCHINGS for model in MODELS),
    )


def pixels(family: str, dtype: str) -> Stage:
    words = ("lab.bench.gpu.pixels", family, "--dtype", dtype)
    return Stage(f"pixels-{family}-{dtype}", words, limit_s=240, least_s=30)


def compare(model: str, batching: str, *options: str) -> Stage:
    words = ("lab.bench.against", model, "--batching", batching, "--turns", "1")
    words = (*words, "--repeats", REPEATS, *MODELS[model], *options)
    return Stage(f"speed-{model}-{batching}", words, limit_s=600, least_s=120)
