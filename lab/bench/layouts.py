"""Accuracy and distribution of layouts: two tables for docs/performance/layouts.md.

    python -m lab.bench.layouts > tables.md

Accuracy: tiny random checkpoints in float32 on eight virtual CPU devices, compared with one device.
Distribution: one call of each denoising network, read from the compiled programs.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["JAX_NUM_CPU_DEVICES"] = "8"

import numpy as np

from models import registry
from models.interface.pipeline import Pipeline
from tests.families.suite import SUITE
from tests.families.test_generation import LAYOUTS, drawn
from tests.parallel.layouts import layout
from tests.parallel.test_split import FAMILIES, compiled, work


def main() -> None:
    print("\n".join([*equal(), "", *split()]))


def equal() -> Iterator[str]:
    """Yield rows with the largest relative difference of any step's latents, and the pixels'
    PSNR."""
    cells = {family: dict(gaps(family)) for family in SUITE}
    yield "| layout | " + " | ".join(cells) + " |"
    yield "|---|" + "---|" * len(cells)
    for name in LAYOUTS:
        yield f"| {name} | " + " | ".join(cells[family][name] for family in cells) + " |"


def gaps(family: str) -> Iterator[tuple[str, str]]:
    with tempfile.TemporaryDirectory() as folder:
        pipeline: Pipeline = registry.load(
            family, str(SUITE[family].make(Path(folder) / family)), "float32", {}
        )
    fields: dict[str, Any] = {**pipeline.spec.defaults, **SUITE[family].request}
    fields |= {"prompt": "a red circle", "seed": 3, "num_inference_steps": 2}
    prepared = pipeline.prepare(fields, {})
    steps, pixels = drawn(pipeline, prepared, layout())
    for name, sizes in LAYOUTS.items():
        split_steps, split_pixels = drawn(pipeline, prepared, layout(**sizes))
        gap = max(
            np.abs(split_latents - latents).max() / np.abs(latents).max()
            for split_latents, latents in zip(split_steps, steps, strict=True)
        )
        noise = np.mean(np.square(split_pixels.astype(float) - pixels))
        quality = f"{10 * np.log10(255**2 / noise):.0f} dB" if noise else "same pixels"
        yield name, f"{gap:.1e}, {quality}"


def split() -> Iterator[str]:
    """Yield rows with the work and argument bytes (weights and inputs) of one device."""
    yield "| layout | " + " | ".join(f"{name} work, weights" for name in FAMILIES) + " |"
    yield "|---|" + "---|" * len(FAMILIES)
    unsplit = {family: compiled(family, layout()) for family in FAMILIES}
    for name, sizes in LAYOUTS.items():
        cells = []
        for family in FAMILIES:
            part = compiled(family, layout(**sizes))
            memory, all_memory = (
                program.memory_analysis().argument_size_in_bytes
                for program in (part, unsplit[family])
            )
            cells.append(f"{work(part) / work(unsplit[family]):.3f}, {memory / all_memory:.3f}")
        yield f"| {name} | " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
