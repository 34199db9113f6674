"""What exact batching costs on this machine: `python -m tests.bench.rows`.

Steps of 1, 2, 4 and 8 images at once: by one program of so many rows (`fast`), by that of one row
sent for each of them (`exact`), and by one of n rows, padded (`exact_rows = n`). The variants take
turns in every round, so that a busy machine disturbs all of them; ratios are of the same round.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import jax

import models.demo
from models import registry
from models.interface.pipeline import Pipeline
from tests.bench.quality.wide import _CLIP, _T5, _VAE, Wide, opened
from workers.engine.batching import Batch
from workers.engine.row import Row
from workers.programs import warmup
from workers.programs.bucket_programs import BucketPrograms, Phase, finished
from workers.programs.compiler import Compiler
from workers.programs.step_latency import BatchLayout
from workers.slice.mesh import one_device

PICTURES, EXACT_ROWS = (1, 2, 4, 8), (1, 2, 4)
WIDE = Wide(
    "Flux, 1 double and 2 single blocks of width 1024, 128 x 128",
    "flux-dev",
    {"text_encoder": _CLIP, "text_encoder_2": _T5, "vae": _VAE},
    {"width": 128, "height": 128, "max_sequence_length": 64},
    {"transformer": {"num_attention_heads": 8, "num_layers": 1, "num_single_layers": 2}},
)


class Steps:
    """The first step of one model's warm-up request, by programs of several sizes."""

    def __init__(self, pipeline: Pipeline, fields: dict[str, object]) -> None:
        compiler = Compiler(pipeline, one_device(jax.devices()[0]))
        (request,) = warmup.requests(pipeline.spec, [fields])
        prepared = warmup.prepare(pipeline, request)
        encoding = compiler.encoding(prepared.inputs)
        self._weights = compiler.weights
        state = encoding.program(encoding.row)(compiler.weights.common, dict(prepared.inputs))
        first = prepared.steps[0]
        told = compiler.conditions(first.phase, first.values, state)
        self._phase = Phase(first.phase, conditions=finished(told))
        for size in PICTURES:
            program, _ = compiler.step(first.phase, first.values, BatchLayout(size), state)
            self._phase.programs[BatchLayout(size)] = finished(program)
        programs = BucketPrograms(prepared.bucket)
        programs.phases[first.phase] = self._phase
        self._rows = [
            Row(programs, prepared.steps, state, lambda row: None, lambda row, failure: None)
            for _ in range(max(PICTURES))
        ]

    def seconds(self, pictures: int, size: int) -> float:
        """Of one step of so many images, by the program of that size."""
        weights = self._weights.load_expert(self._phase.expert)
        started = time.perf_counter()
        for first in range(0, pictures, size):
            rows = tuple(self._rows[first : min(first + size, pictures)])
            sent = Batch(self._phase, rows, BatchLayout(size)).run(weights)
        jax.block_until_ready(sent)
        return time.perf_counter() - started


def measured(steps: Steps, rounds: int) -> dict[tuple[int, int], list[float]]:
    """By images and size: seconds of each round."""
    asked = [(p, s) for p in PICTURES for s in {p, *EXACT_ROWS}]
    for batch_layout in asked:
        steps.seconds(*batch_layout)
    found: dict[tuple[int, int], list[float]] = {batch_layout: [] for batch_layout in asked}
    for _ in range(rounds):
        for batch_layout in asked:
            found[batch_layout].append(steps.seconds(*batch_layout))
    return found


def lines(name: str, found: dict[tuple[int, int], list[float]]) -> Sequence[str]:
    """Images' steps a second, and of the former way's time in the same round (quartiles)."""

    def told(pictures: int, size: int) -> str:
        times, former = found[pictures, size], found[pictures, pictures]
        ratios = sorted(one / other for one, other in zip(times, former, strict=True))
        low, high = ratios[len(ratios) // 4], ratios[math.ceil(3 * len(ratios) / 4) - 1]
        rate = f"{pictures / median(times):.3g}"
        return rate if size == pictures else f"{rate} ({median(ratios):.2f}, {low:.2f}–{high:.2f})"

    return [
        f"| {name} | {p} | {told(p, p)} | {told(p, 1)} | {told(p, 2)} | {told(p, 4)} |"
        for p in PICTURES
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--dtype", default="bfloat16", help="of the demo models")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("models", nargs="*", default=["flux", "sdxl", "wan", "wide"])
    args = parser.parse_args()
    print("| model | images | fast: one program of all | exact | exact_rows 2 | exact_rows 4 |")
    print("|---|---|---|---|---|---|")
    for name in args.models:
        if name == "wide":
            steps = Steps(opened(WIDE), dict(WIDE.fields))
            title = WIDE.title
        else:
            folder = Path(models.demo.__file__).parent / name
            steps = Steps(registry.load(name, str(folder), args.dtype, {}), {})
            title = f"demo {name}"
        print("\n".join(lines(title, measured(steps, args.rounds))), flush=True)


if __name__ == "__main__":
    main()
