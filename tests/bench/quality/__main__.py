"""`python -m tests.bench.quality`: what every preset of quality costs and gains, for
docs/quality.md. Half an hour on two cores, and 6 GB of memory for the wide networks."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import jax

from models import catalog
from models.demo.moving import Moving
from models.demo.pictures import Pictures
from models.quality import PRESETS
from models.rounding import Rounding
from tests.bench.quality import wide
from tests.bench.quality.drawing import Cost, Drawer, costs

DEMO = Path(__file__).resolve().parents[3] / "models" / "demo"
SUBJECTS: dict[str, Any] = {"flux": Pictures(), "sdxl": Pictures(), "wan": Moving()}

HEAD = (
    "| preset | PSNR, median | worst | time of the steps | steps left out | right |\n"
    "|---|---|---|---|---|---|"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pictures", type=int, default=20, help="of each demo model (20)")
    parser.add_argument("--models", nargs="*", default=list(SUBJECTS), choices=list(SUBJECTS))
    parser.add_argument("--presets", nargs="*", help="of each model; left out: all that it has")
    parser.add_argument("--wide", nargs="*", default=[], choices=list(wide.WIDE), metavar="NAME")
    parser.add_argument("--seeds", type=int, default=3, help="of each network of full width (3)")
    args = parser.parse_args()
    print(f"jax {jax.__version__} on {jax.devices()[0].device_kind}, float32\n")
    for name in args.models:
        demo(name, args.pictures, args.presets)
    for name in args.wide:
        of_width(wide.WIDE[name], args.seeds)


def demo(name: str, pictures: int, presets: list[str] | None) -> None:
    pipeline = catalog.load(name, str(DEMO / name), "float32", {}, rounding=Rounding("beside"))
    subject = SUBJECTS[name]
    prompts = next(iter(subject.exams().values()))[:pictures]
    requests = [
        {**pipeline.spec.defaults, "prompt": prompt, "seed": seed, "num_images": 1}
        for seed, prompt in enumerate(prompts)
    ]
    found = costs(
        Drawer(pipeline),
        requests,
        list(pipeline.spec.qualities) if presets is None else presets,
        lambda pixels, prompt: subject.check(pixels, prompt).correct,
    )
    print(f"\n{name}-demo, {len(prompts)} held-out prompts\n\n{HEAD}")
    for preset, cost in found.items():
        print(_row(preset, cost), flush=True)


def _row(name: str, cost: Cost) -> str:
    near = ("", "") if name == "exact" else (f"{cost.psnr_db:.1f} dB", f"{cost.worst_db:.1f} dB")
    shares = (f"{cost.time:.2f}", f"{cost.left_out:.0%}", f"{cost.right:.0%}")
    return f"| {' | '.join([f'`{name}`', *near, *shares])} |"


def of_width(one: wide.Wide, seeds: int) -> None:
    """Nothing is guided, so that caches and 8 bits alone have something to do."""
    presets = {name: PRESETS[name] for name in ("first-block-cache", "teacache", "eight-bit")}
    print(f"\n{one.name}, bfloat16, {wide.STEPS} steps, {seeds} seeds\n")
    print("| preset | PSNR of the latents, median | worst | steps left out |\n|---|---|---|---|")
    for name, (near, worst, left) in wide.costs(one, presets, seeds).items():
        print(f"| `{name}` | {near:.1f} dB | {worst:.1f} dB | {left:.0%} |", flush=True)


if __name__ == "__main__":
    main()
