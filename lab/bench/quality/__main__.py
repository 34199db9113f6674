"""`python -m lab.bench.quality`: cost and gain of every quality preset, for
docs/performance/quality.md. Takes half an hour on two cores; each wide network 5 to 15 core
minutes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from deploy.bench.machine import machine, versions
from deploy.cli.options import count
from lab.bench.quality import wide
from lab.bench.quality.drawing import Cost, GeneratedImage, ImageGenerator, cost, drawn
from lab.demo.training.images import ImageSubject
from lab.demo.training.moving import VideoSubject
from models import registry
from models.spec.quality_presets import EXACT
from models.weights.quantize import Rounding

DEMO = Path(__file__).resolve().parents[3] / "models" / "demo"
SUBJECTS: dict[str, Any] = {"flux": ImageSubject(), "sdxl": ImageSubject(), "wan": VideoSubject()}

COLUMNS = ("preset", "PSNR, median", "worst", "time of the steps", "steps left out")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pictures", type=count, default=20, help="of each demo model (20)")
    parser.add_argument("--models", nargs="*", default=list(SUBJECTS), choices=list(SUBJECTS))
    parser.add_argument("--presets", nargs="*", help="of each model; left out: all that it has")
    parser.add_argument("--wide", nargs="*", default=[], choices=list(wide.WIDE), metavar="NAME")
    parser.add_argument("--seeds", type=count, default=3, help="of each network of full width (3)")
    parser.add_argument("--steps", type=count, default=8, help="of each of them (8)")
    parser.add_argument("--scratch", type=Path, help="a folder for weights: files, not memory")
    args = parser.parse_args()
    print(f"{machine()['processor']}; float32; {versions()}", flush=True)
    for name in args.models:
        demo(name, args.pictures, args.presets)
    for name in args.wide:
        of_width(wide.WIDE[name], args.seeds, args.steps, args.presets, args.scratch)


def demo(name: str, pictures: int, presets: list[str] | None) -> None:
    pipeline = registry.load(name, str(DEMO / name), "float32", {}, rounding=Rounding("beside"))
    subject = SUBJECTS[name]
    prompts = next(iter(subject.exams().values()))[:pictures]
    requests = [
        {**pipeline.spec.defaults, "prompt": prompt, "seed": seed, "num_images": 1}
        for seed, prompt in enumerate(prompts)
    ]
    names = list(pipeline.spec.qualities) if presets is None else presets
    drawings_by_preset = drawn(ImageGenerator(pipeline), requests, names)
    _head(f"{name}-demo, {len(prompts)} held-out prompts", *COLUMNS, "right")
    for preset, drawings in drawings_by_preset.items():
        correct = _right(subject, drawings, prompts)
        _row(preset, cost(drawings, drawings_by_preset[EXACT]), f"{correct:.0%}")


def _right(subject: Any, drawings: Sequence[GeneratedImage], prompts: Sequence[str]) -> float:
    """Share of images that show the prompt's content."""
    pairs = zip(drawings, prompts, strict=True)
    return float(
        np.mean([subject.check(drawing.result, prompt).correct for drawing, prompt in pairs])
    )


def of_width(
    network: wide.Wide, seeds: int, steps: int, presets: list[str] | None, scratch: Path | None
) -> None:
    costs = wide.costs(network, seeds, steps, presets, scratch)
    _head(f"{network.title}, {steps} steps, {seeds} seeds", *COLUMNS)
    for preset, its in costs.items():
        _row(preset, its)


def _head(title: str, *columns: str) -> None:
    print(f"\n{title}\n\n| {' | '.join(columns)} |\n{'|---' * len(columns)}|")


def _row(name: str, cost: Cost, *more: str) -> None:
    near = ("", "") if name == EXACT else (f"{cost.psnr_db:.1f} dB", f"{cost.worst_db:.1f} dB")
    cells = (f"`{name}`", *near, f"{cost.time:.2f}", f"{cost.left_out:.0%}", *more)
    print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
