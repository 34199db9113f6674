"""Times of whole decoders by the TPU compiler's schedule: `python -m lab.bench.tpu_decodes --model
sdxl`. Compiling each takes many minutes; nothing runs."""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import jax

from lab.tpu.cases import DTYPE, GUARDED, Case
from lab.tpu.schedule import KINDS, in_child, parts
from models.nn.kernels.select import kernel_for
from models.parallel.axis_rules import Layout
from workers.plan import tpu_compiler
from workers.plan.estimate import Pass, estimate
from workers.plan.model import abstract, sketch_of
from workers.programs import warmup
from workers.programs.tracer import Tracer

CASES = {
    "sdxl": GUARDED["sdxl"],
    "flux-dev": replace(GUARDED["flux-context"], topology="v6e:1x1", mesh={}),
    "wan2.1-14b": GUARDED["wan"],
}


def compiled(case: Case) -> str:
    """Return the compiled text of a decoder. No TPU library may be loaded before."""
    with tempfile.TemporaryDirectory() as folder:
        dump_flags = (
            f"--xla_dump_to={folder} --xla_dump_hlo_as_text --xla_dump_hlo_module_re=jit_pixels"
        )
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {dump_flags}"
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


def estimated(case: Case) -> Pass:
    """Return the planner's estimate of the decoder."""
    sketch = sketch_of(case.model, DTYPE, case.request)
    return estimate(sketch, case.shape, case.slice.chip).passes["decode"]


def main() -> None:
    """Print a row of a Markdown table for each decoder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", nargs="+", choices=CASES, default=[*CASES])
    args = parser.parse_args()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    columns = ("model, chips", *KINDS, "together", "at the rated peak", "reckoned", "compiled in")
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|", flush=True)
    for name in args.model:
        case, started = CASES[name], time.monotonic()
        operations = parts(in_child(compiled, case), case.clock_hz, {})
        kind_s = [
            sum(operation.runs * operation.seconds[kind] for operation in operations)
            for kind in KINDS
        ]
        result = in_child(estimated, case)
        times = (
            *kind_s,
            sum(kind_s),
            result.flops / case.slice.chip.peak_flops,
            result.seconds,
        )
        cells = " | ".join(f"{1e3 * operation:.1f} ms" for operation in times)
        elapsed = f"{time.monotonic() - started:.0f} s"
        print(f"| {name}, {case.topology} | {cells} | {elapsed} |", flush=True)


if __name__ == "__main__":
    main()
