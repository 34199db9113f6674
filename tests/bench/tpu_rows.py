"""What a step of several rows takes by the TPU compiler's schedule: `python -m tests.bench.tpu_rows
--model flux-dev --side 1024 --rows 1 2 4`. Prints a row of a Markdown table for each; nothing is
timed."""

from __future__ import annotations

import argparse
import os

from models.published import CHECKPOINTS
from workers.plan.cases import Case, compiled
from workers.plan.operations import operations
from workers.plan.schedule import in_child, is_attention, kernels, parts, shape_of


def seconds(case: Case, rows: int) -> float:
    """Of one step of so many rows. Raises: JaxRuntimeError: it does not fit."""
    text = in_child(compiled, case, rows)
    shapes = {shape_of(one) for one in operations(text) if is_attention(one)}
    ordered = sorted(shapes, key=lambda one: one.keys)
    cycles = dict(zip(ordered, in_child(kernels, case, ordered), strict=True)) if ordered else {}
    found = parts(text, case.clock_hz, cycles)
    return sum(part.runs * (part.xla_s + part.attention_s) for part in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=CHECKPOINTS, default="flux-dev")
    parser.add_argument("--family", default="flux")
    parser.add_argument("--side", type=int, nargs="+", default=[512, 1024])
    parser.add_argument("--topology", default="v6e:1x1")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4])
    args = parser.parse_args()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    print("| model, chip | rows | a step | a row | of one row's step |\n|---|---|---|---|---|")
    for side in args.side:
        request = {"height": side, "width": side}
        case = Case(args.model, args.family, request, args.topology, {})
        alone_s = 0.0
        for rows in args.rows:
            step_s = seconds(case, rows)
            alone_s = alone_s or step_s / rows
            told = f"{args.model} {side}², {args.topology}"
            each = f"{1e3 * step_s:.1f} ms | {1e3 * step_s / rows:.1f} ms"
            print(f"| {told} | {rows} | {each} | {step_s / rows / alone_s:.2f} |", flush=True)


if __name__ == "__main__":
    main()
