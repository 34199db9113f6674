"""Cost of exact batching on this machine: `python -m lab.bench.rows`.

Steps of 1, 2, 4 and 8 images: by one program with all rows (`fast`), by the single-row program for
each row (`exact`), and by padded programs of n rows (`exact_rows = n`). The variants take turns in
every round, so that other load affects all of them; ratios are within a round.
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
from lab.bench.quality.wide import _CLIP, _T5, _VAE, Wide, opened
from models import registry
from models.interface.pipeline import Pipeline
from workers.engine.batching import Batch
from workers.engine.row import Row
from workers.programs import warmup
from workers.programs.bucket_programs import BucketPrograms, StepKind, finished
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
    """The first step of a model's warm-up request, by programs of several sizes."""

    def __init__(self, pipeline: Pipeline, fields: dict[str, object]) -> None:
        compiler = Compiler(pipeline, one_device(jax.devices()[0]))
        (request,) = warmup.requests(pipeline.spec, [fields])
        prepared = warmup.prepare(pipeline, request)
        encoding = compiler.encoding(prepared.inputs)
        self._weights = compiler.weights
        state = encoding.program(encoding.row)(compiler.weights.common, dict(prepared.inputs))
        first = prepared.steps[0]
        conditions_ = compiler.modulations(first.program, first.values, state)
        self._step_kind = StepKind(first.program, modulations=finished(conditions_))
        for size in PICTURES:
            program, _ = compiler.step(first.program, first.values, BatchLayout(size), state)
            self._step_kind.programs[BatchLayout(size)] = finished(program)
        programs = BucketPrograms(prepared.bucket)
        programs.step_kinds[first.program] = self._step_kind
        self._rows = [
            Row(programs, prepared.steps, state, lambda row: None, lambda row, failure: None)
            for _ in range(max(PICTURES))
        ]

    def seconds(self, pictures: int, size: int) -> float:
        """Seconds of a step of that many images with the program of that size."""
        weights = self._weights.load_expert(self._step_kind.expert)
        started = time.perf_counter()
        for first in range(0, pictures, size):
            rows = tuple(self._rows[first : min(first + size, pictures)])
            result = Batch(self._step_kind, rows, BatchLayout(size)).run(weights)
        jax.block_until_ready(result)
        return time.perf_counter() - started


def measured(steps: Steps, rounds: int) -> dict[tuple[int, int], list[float]]:
    """Seconds of each round, by images and size."""
    variants = [(p, s) for p in PICTURES for s in {p, *EXACT_ROWS}]
    for batch_layout in variants:
        steps.seconds(*batch_layout)
    times_s: dict[tuple[int, int], list[float]] = {batch_layout: [] for batch_layout in variants}
    for _ in range(rounds):
        for batch_layout in variants:
            times_s[batch_layout].append(steps.seconds(*batch_layout))
    return times_s


def lines(name: str, times_s: dict[tuple[int, int], list[float]]) -> Sequence[str]:
    """Rows with image steps per second, and time relative to `fast` in the same round
    (quartiles)."""

    def cell(pictures: int, size: int) -> str:
        times, former = times_s[pictures, size], times_s[pictures, pictures]
        ratios = sorted(
            time_s / reference_s for time_s, reference_s in zip(times, former, strict=True)
        )
        low, high = ratios[len(ratios) // 4], ratios[math.ceil(3 * len(ratios) / 4) - 1]
        rate = f"{pictures / median(times):.3g}"
        return rate if size == pictures else f"{rate} ({median(ratios):.2f}, {low:.2f}–{high:.2f})"

    return [
        f"| {name} | {p} | {cell(p, p)} | {cell(p, 1)} | {cell(p, 2)} | {cell(p, 4)} |"
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
