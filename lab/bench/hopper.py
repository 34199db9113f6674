"""XLA's programs of a step for an H200, compiled without a GPU. Checks for cuDNN's flash attention.

    pip install --no-deps --target DIR jax-cuda13-plugin jax-cuda13-pjrt nvidia-cudnn-cu13
    PYTHONPATH=$PWD:DIR python -m lab.bench.hopper flux-dev [--height 1024 --width 1024]
    … flux-dev --only step --moves [--eight-bit]

Compiles the engine's programs at full size from shapes alone and counts the library kernels that
they call. It also prints the largest batched product, which would be the logits of a plain
attention. The packages, of the installed JAX's version, take 650 MB.

Kernels are not tuned, because tuning needs the card: times are unavailable, and memory may differ
slightly. Untuned products use Triton; XLA_FLAGS=--xla_gpu_enable_triton_gemm=false uses cuBLAS, the
tuner's alternative.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import time
from collections import Counter
from typing import Any

from workers.slice.xla_flags import chosen

os.environ |= {
    # Compiling needs neither CUDA libraries nor a driver.
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
    "CUDA_VISIBLE_DEVICES": "-1",
    "XLA_FLAGS": " ".join(
        [
            "--xla_gpu_autotune_level=0",
            *chosen("nvidia", "")["xla"],
            os.environ.get("XLA_FLAGS", ""),
        ]
    ),
    "JAX_PLATFORMS": "",
    "TPU_SKIP_MDS_QUERY": "1",
}

import jax
from jax.stages import Compiled, Traced

from lab.bench.moves import moves, table
from models.nn.kernels.select import kernel_for
from models.nn.quant.matmul import kind_of
from models.parallel.axis_rules import Layout
from models.parallel.jax_internals import get_topology_desc
from models.spec.quality_presets import EIGHT_BIT_PRESETS, EightBitProducts
from models.weights.quantize import Rounding
from workers.plan.model import abstract
from workers.programs import warmup
from workers.programs.tracer import Tracer
from workers.slice.mesh import make_mesh
from workers.slice.mesh_shape import MeshShape

H200 = """
platform_name: "CUDA"
device_description_str: "NVIDIA H200"
dnn_version_info { major: 9 minor: 10 }
runtime_version { major: 13 }
gpu_device_info {
  cuda_compute_capability { major: 9 }
  core_count: 132  fpus_per_core: 128  clock_rate_ghz: 1.98  threads_per_warp: 32
  threads_per_block_limit: 1024  threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647  block_dim_limit_y: 65535  block_dim_limit_z: 65535
  registers_per_core_limit: 65536  registers_per_block_limit: 65536
  shared_memory_per_block: 49152  shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472  l2_cache_size: 52428800
  device_memory_size: 150000000000  memory_bandwidth: 4800000000000
}
"""
"""Device description that the compiler reads. Source: NVIDIA's H200 data sheet and CUDA's
programming guide, compute capability 9.0."""
CAPABILITY = "9.0"
GIB = 2**30
CALL = re.compile(r'custom_call_target="([^"]+)"')
PRODUCTS = (
    r"= \w+\[([\d,]+)\]\S* dot\(.*lhs_batch_dims=\{\d",
    r"= \(?\w+\[([\d,]+)\].*__cublas\$.*lhs_batch_dimensions\":\[\"",
)
"""Patterns of batched products in XLA's text: its own, and cuBLAS'."""
SIZES = ("width", "height", "num_frames")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="as atelier plan has it")
    for name in SIZES:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int)
    parser.add_argument("--only", default="", help="programs whose names begin so: step, decode")
    parser.add_argument("--eight-bit", choices=[*EIGHT_BIT_PRESETS], help="blocks of 8-bit floats")
    parser.add_argument("--moves", action="store_true", help="what it moves and computes, by kind")
    parser.add_argument("--longest", type=int, default=0, help="so many operations by name")
    args = parser.parse_args()
    sizes = {name: getattr(args, name) for name in SIZES if getattr(args, name)}
    print(f"jax {jax.__version__}, compiled for an H200, not run")
    for name, traced in programs(args.model, sizes, args.eight_bit).items():
        if not name.startswith(args.only):
            continue
        started = time.perf_counter()
        program = traced.lower().compile()
        print_program(name, program, time.perf_counter() - started)
        if args.moves:
            print(table(list(moves(program.as_text() or "")), args.longest))


def programs(
    model: str, sizes: dict[str, int], eight_bit: EightBitProducts | None = None
) -> dict[str, Traced]:
    """Trace a row's step of each step kind, and its decoding.

    Args:
        eight_bit: kind of 8-bit products; replaces exact blocks by 8-bit blocks.
    """
    devices = get_topology_desc(platform="cuda", target_config=H200, topology="1x1x1").devices[:1]
    layout = Layout(make_mesh(MeshShape().over(1), devices), kernel_for(devices[0], "bfloat16"))
    rounding = Rounding("instead", kind_of("gpu", CAPABILITY)) if eight_bit else None
    pipeline = abstract(
        model, "bfloat16", layout.of_parameter, swap_experts=False, rounding=rounding
    )
    preset = {"quality": EIGHT_BIT_PRESETS[eight_bit]} if eight_bit else {}
    (fields,) = warmup.requests(pipeline.spec, [{**preset, **sizes}])
    prepared = warmup.prepare(pipeline, fields)
    tracer = Tracer(pipeline, layout)
    row = tracer.encode(prepared.inputs).out_info
    values: dict[str, Any] = {step.program: step.values for step in prepared.steps}
    steps = {
        f"step {step_program}": tracer.step(step_program, step_values, row)
        for step_program, step_values in values.items()
    }
    return {**steps, "decode": tracer.decode(row)}


def print_program(name: str, program: Compiled, seconds: float) -> None:
    text = program.as_text() or ""
    calls = Counter(CALL.findall(text))
    memory: Any = program.memory_analysis()
    weights, temporary = (
        size / GIB for size in (memory.argument_size_in_bytes, memory.temp_size_in_bytes)
    )
    print(
        f"{name}: {seconds:.0f} s to compile; {weights:.2f} GiB of weights and inputs,"
        f" {temporary:.2f} GiB beside them"
    )
    for target, count in sorted(calls.items()):
        print(f"  {target}: {count}")
    print(f"  largest product of a batch: {largest(text):.3g} elements")


def largest(text: str) -> float:
    """Elements of the largest result of a product with batch axes, including heads."""
    shapes = [shape for product in PRODUCTS for shape in re.findall(product, text)]
    return max((math.prod(map(float, shape.split(","))) for shape in shapes), default=0.0)


if __name__ == "__main__":
    main()
