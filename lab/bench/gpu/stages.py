"""Stages of `make gpu` in order of importance, with their time limits, and its installation."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

FAMILIES = ("flux", "sdxl", "wan")
REPEATS = "3"
LONGEST_S = 500.0
"""Largest time limit of a stage, so that it fits a piece of nine minutes."""
STEPS: Mapping[str, Sequence[str]] = {
    "wan2.1-1.3b": ("--steps", "10"),
    "wan2.1-14b": ("--steps", "4"),
}
"""Fewer steps where a step takes seconds, which suffices to measure it."""


@dataclass(frozen=True)
class Stage:
    """A process that writes its result to a file named after it, repeatedly if possible."""

    name: str
    words: Sequence[str]
    """Module and its arguments."""
    limit_s: float
    """Time limit; results written until then count."""
    min_s: float
    """Minimum remaining time to start."""
    reads: str = ""
    """Stage whose result it reuses, by the option `--ours`, if there is one; empty: none."""

    def command(self, folder: Path) -> list[str]:
        reused = ["--ours", str(folder / f"{self.reads}.json")] if self.reads else []
        return [sys.executable, "-m", *self.words, *reused, "--json", str(self.file(folder))]

    def file(self, folder: Path) -> Path:
        return folder / f"{self.name}.json"


@dataclass(frozen=True)
class Sizes:
    """Sizes of the speed stages: full, or the demo models' for a rehearsal without a GPU."""

    engine: Sequence[str] = ("--dtype", "bfloat16", "--repeats", REPEATS)
    diffusers: Sequence[str] = ("--repeats", REPEATS)
    steps: Mapping[str, Sequence[str]] = field(default_factory=lambda: STEPS)


FULL = Sizes()
TINY = Sizes(
    ("--tiny", "--dtype", "float32", "--repeats", "1"), ("--tiny", "--eager", "--repeats", "1"),
    dict.fromkeys(("flux-dev", "sdxl", "wan2.1-1.3b", "wan2.1-14b"), ("--steps", "2")),
)  # fmt: skip
"""Without torch.compile, which takes minutes on a CPU."""


def stages(folder: Path, sizes: Sizes = FULL) -> tuple[Stage, ...]:
    """List the stages, those that say most per second first.

    Args:
        folder: where compiled programs are stored between stages.
    """

    def engine(name: str, model: str, *options: str, limit_s: float = 300.0) -> Stage:
        words = ("atelier", "bench", "engine", "--model", model, "--devices", "0")
        cache = ("--compile-cache", str(folder / "compiled"))
        words = (*words, *sizes.engine, *sizes.steps.get(model, ()), *cache, *options)
        return Stage(name, words, limit_s, min_s=90)

    def diffusers(model: str, ours: str) -> Stage:
        words = ("lab.bench.against", model, "--turns", "1")
        words = (*words, *sizes.diffusers, *sizes.steps.get(model, ()))
        return Stage(f"diffusers-{model}", words, LONGEST_S, min_s=120, reads=ours)

    return (
        pixels("flux", "bfloat16"),
        engine("engine-flux-dev", "flux-dev"),
        diffusers("flux-dev", "engine-flux-dev"),
        engine("engine-sdxl", "sdxl"),
        diffusers("sdxl", "engine-sdxl"),
        engine("engine-flux-dev-exact-4", "flux-dev", "--batch", "4"),
        engine("engine-flux-dev-fast", "flux-dev", "--batching", "fast"),
        engine("engine-flux-dev-fast-4", "flux-dev", "--batching", "fast", "--batch", "4"),
        engine("engine-wan2.1-1.3b", "wan2.1-1.3b"),
        diffusers("wan2.1-1.3b", "engine-wan2.1-1.3b"),
        *(pixels(family, "float32") for family in FAMILIES),
        *(pixels(family, "bfloat16") for family in FAMILIES[1:]),
        engine("engine-flux-dev-w8a8", "flux-dev", "--eight-bit", "w8a8"),
        engine("engine-flux-dev-w8a16", "flux-dev", "--eight-bit", "w8a16"),
        engine("engine-flux-dev-warm", "flux-dev"),
        engine("engine-sdxl-fast", "sdxl", "--batching", "fast"),
        engine("engine-sdxl-exact-4", "sdxl", "--batch", "4"),
        engine("engine-wan2.1-1.3b-fast", "wan2.1-1.3b", "--batching", "fast"),
        engine("engine-wan2.1-14b", "wan2.1-14b", limit_s=LONGEST_S),
        diffusers("wan2.1-14b", "engine-wan2.1-14b"),
    )


def pixels(family: str, dtype: str) -> Stage:
    words = ("lab.bench.gpu.pixels", family, "--dtype", dtype)
    return Stage(f"pixels-{family}-{dtype}", words, limit_s=240, min_s=60)


def install_wheels(wheels: Path, site: Path, installed: Callable[[str], bool]) -> list[str]:
    """Unpack each wheel whose package is not installed; return their names.

    A wheel is a zip file whose top level belongs in a site folder. Its programs and headers are not
    needed.

    Raises:
        BadZipFile: a wheel is damaged; make the folder again.
    """
    site.mkdir(parents=True, exist_ok=True)
    brought = []
    for wheel in sorted(wheels.glob("*.whl")):
        name = wheel.name.split("-")[0]
        if installed(name):
            continue
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
        brought.append(name)
    return brought


def is_installed(name: str) -> bool:
    """Whether this Python has the package in any version."""
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


def fits_here(wheels: Path) -> bool:
    """Whether the folder's compiled wheels are for this version of Python."""
    tags = {wheel.stem.split("-")[-3] for wheel in wheels.glob("*.whl")}
    compiled = {tag for tag in tags if tag.startswith("cp3") and not tag.endswith("abi3")}
    exact = {tag for tag in compiled if tag[3:].isdigit() and int(tag[3:]) >= 11}
    return not exact or f"cp3{sys.version_info.minor}" in exact
