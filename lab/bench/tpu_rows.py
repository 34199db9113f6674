"""Step times of several rows by the TPU compiler's schedule: `python -m lab.bench.tpu_rows --model
flux-dev --side 1024 --rows 1 2 4`. Prints a row of a Markdown table for each; nothing runs."""

from __future__ import annotations

import argparse
import os

from lab.tpu.cases import Case, compiled
from lab.tpu.operations import operations
from lab.tpu.schedule import in_child, is_attention, kernels, parts, shape_of
from models.published import CHECKPOINTS


def seconds(case: Case, rows: int) -> float:
    """Seconds of a step of that many rows. Raises: JaxRuntimeError: it does not fit."""
    text = in_child(compiled, case, rows)
    shapes = {shape_of(operation) for operation in operations(text) if is_attention(operation)}
    ordered = sorted(shapes, key=lambda operation: operation.keys)
    cycles = dict(zip(ordered, in_child(kernels, case, ordered), strict=True)) if ordered else {}
    step_parts = parts(text, case.clock_hz, cycles)
    return sum(part.runs * (part.xla_s + part.attention_s) for part in step_parts)


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
            case_text = f"{args.model} {side}², {args.topology}"
            each = f"{1e3 * step_s:.1f} ms | {1e3 * step_s / rows:.1f} ms"
            print(f"| {case_text} | {rows} | {each} | {step_s / rows / alone_s:.2f} |", flush=True)


if __name__ == "__main__":
    main()
