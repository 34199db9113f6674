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
from models.quality import PRESETS, Quality, StepCache
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
    parser.add_argument("--wide", action="store_true", help="networks of full width, too")
    args = parser.parse_args()
    print(f"jax {jax.__version__} on {jax.devices()[0].device_kind}, float32\n")
    for name in args.models:
        demo(name, args.pictures, args.presets)
    for one in wide.WIDE if args.wide else ():
        of_width(one)


def demo(name: str, pictures: int, presets: list[str] | None) -> None:
    pipeline = catalog.load(name, str(DEMO / name), "float32", {})
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


def of_width(one: wide.Wide) -> None:
    """A request without guidance, so that only caches and 8 bits have something to do."""
    presets = {name: preset.only({"step_cache", "eight_bit"}) for name, preset in PRESETS.items()}
    presets = {name: preset for name, preset in presets.items() if preset.levers}
    presets["eight-bit, first-block-cache"] = Quality(
        eight_bit=True, step_cache=StepCache(kind="first-block", threshold=0.1)
    )
    print(f"\n{one.name}, bfloat16, {wide.STEPS} steps, {len(wide.SEEDS)} seeds\n")
    print("| preset | PSNR of the latents, median | worst | steps left out |\n|---|---|---|---|")
    for name, (near, worst, left) in wide.costs(one, presets).items():
        print(f"| `{name}` | {near:.1f} dB | {worst:.1f} dB | {left:.0%} |", flush=True)


if __name__ == "__main__":
    main()
