"""How equal and how split the layouts are: two tables for docs/performance/layouts.md.

    python -m tests.bench.layouts > tables.md

Equal: tiny random checkpoints on eight virtual CPU devices, against one device, float32. Split:
one call of each denoising network, read off the compiled programs.
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
from tests.families.test_drawing import LAYOUTS, drawn
from tests.parallel.layouts import layout
from tests.parallel.test_split import FAMILIES, compiled, work


def main() -> None:
    print("\n".join([*equal(), "", *split()]))


def equal() -> Iterator[str]:
    """Largest relative gap of any step's latents, and the pixels' PSNR."""
    found = {family: dict(gaps(family)) for family in SUITE}
    yield "| layout | " + " | ".join(found) + " |"
    yield "|---|" + "---|" * len(found)
    for name in LAYOUTS:
        yield f"| {name} | " + " | ".join(found[family][name] for family in found) + " |"


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
        others, drawing = drawn(pipeline, prepared, layout(**sizes))
        gap = max(
            np.abs(other - one).max() / np.abs(one).max()
            for other, one in zip(others, steps, strict=True)
        )
        noise = np.mean(np.square(drawing.astype(float) - pixels))
        shown = f"{10 * np.log10(255**2 / noise):.0f} dB" if noise else "same pixels"
        yield name, f"{gap:.1e}, {shown}"


def split() -> Iterator[str]:
    """Of one device's: work, and bytes of the arguments (weights and inputs)."""
    yield "| layout | " + " | ".join(f"{name} work, weights" for name in FAMILIES) + " |"
    yield "|---|" + "---|" * len(FAMILIES)
    whole = {family: compiled(family, layout()) for family in FAMILIES}
    for name, sizes in LAYOUTS.items():
        cells = []
        for family in FAMILIES:
            part = compiled(family, layout(**sizes))
            memory, all_memory = (
                one.memory_analysis().argument_size_in_bytes for one in (part, whole[family])
            )
            cells.append(f"{work(part) / work(whole[family]):.3f}, {memory / all_memory:.3f}")
        yield f"| {name} | " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
