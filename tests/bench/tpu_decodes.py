"""Times of whole decoders by the TPU compiler's schedule: `python -m tests.bench.tpu_decodes
--model sdxl`. Each takes the compiler many minutes; nothing is timed."""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import jax

from models.nn.kernels.select import kernel_for
from models.parallel.axis_rules import Layout
from workers.plan import tpu_compiler
from workers.plan.cases import DTYPE, GUARDED, Case
from workers.plan.estimate import Pass, estimate
from workers.plan.model import abstract, sketch_of
from workers.plan.schedule import KINDS, in_child, parts
from workers.programs import warmup
from workers.programs.tracer import Tracer

CASES = {
    "sdxl": GUARDED["sdxl"],
    "flux-dev": replace(GUARDED["flux-context"], topology="v6e:1x1", mesh={}),
    "wan2.1-14b": GUARDED["wan"],
}


def compiled(case: Case) -> str:
    """Return the text of a decoder, compiled. Nothing of TPUs may have been loaded yet."""
    with tempfile.TemporaryDirectory() as folder:
        asked = f"--xla_dump_to={folder} --xla_dump_hlo_as_text --xla_dump_hlo_module_re=jit_pixels"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {asked}"
        tpu_compiler.prepare(case.slice, case.family)
        devices = tpu_compiler.devices_of(case.slice)
        mesh = tpu_compiler.mesh_of(case.shape, devices)
        layout = Layout(mesh, kernel_for(devices[0], DTYPE))
        pipeline = abstract(case.model, DTYPE, layout.of_parameter, swap_experts=False)
        (fields,) = warmup.requests(pipeline.spec, [case.request])
        prepared = warmup.prepare(pipeline, fields)
        tracer = Tracer(pipeline, layout)
        row = tracer.encode(prepared.inputs).out_info
        with jax.set_mesh(mesh):
            tracer.decode(row).lower().compile()
        (written,) = Path(folder).glob("*.after_codegen.txt")
        return written.read_text()


def reckoned(case: Case) -> Pass:
    """Return what the planner reckons of that decoder."""
    sketch = sketch_of(case.model, DTYPE, case.request)
    return estimate(sketch, case.shape, case.slice.chip).passes["decode"]


def main() -> None:
    """Print a row of a Markdown table for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", nargs="+", choices=CASES, default=[*CASES])
    args = parser.parse_args()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    columns = ("model, chips", *KINDS, "together", "at the rated peak", "reckoned", "compiled in")
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|", flush=True)
    for name in args.model:
        case, began = CASES[name], time.monotonic()
        found = parts(in_child(compiled, case), case.clock_hz, {})
        each = [sum(one.runs * one.seconds[kind] for one in found) for kind in KINDS]
        ours = in_child(reckoned, case)
        times = (*each, sum(each), ours.flops / case.slice.chip.peak_flops, ours.seconds)
        cells = " | ".join(f"{1e3 * one:.1f} ms" for one in times)
        took = f"{time.monotonic() - began:.0f} s"
        print(f"| {name}, {case.topology} | {cells} | {took} |", flush=True)


if __name__ == "__main__":
    main()
