"""What XLA makes of a step for an H200, with no GPU here: does it call cuDNN's flash attention?

    pip install --no-deps --target DIR jax-cuda13-plugin jax-cuda13-pjrt nvidia-cudnn-cu13
    PYTHONPATH=$PWD:DIR python -m tests.bench.hopper flux-dev [--height 1024 --width 1024]
    … flux-dev --only step --moves [--eight-bit]

Compiles the engine's own programs at full size from shapes alone, counts the libraries' kernels
that they call, and looks for attention by plain products: its logits would be by far the largest
product that there is. (650 MB of packages, of the installed JAX's version.) No kernel is tuned, as
that takes the card: times cannot be had, and memory may differ a little. Where nothing is tuned,
products are Triton's; XLA_FLAGS=--xla_gpu_enable_triton_gemm=false has them by cuBLAS, which is
what the tuner has to choose from.
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
    # There are no CUDA libraries here, nor a driver, and none is needed to compile.
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

from models.nn.kernels.select import kernel_for
from models.nn.quant.matmul import kind_of
from models.parallel.axis_rules import Layout
from models.parallel.jax_internals import get_topology_desc
from models.spec.quality_presets import OF_EIGHT_BITS, EightBitProducts
from models.weights.quantize import Rounding
from tests.bench.moves import moves, table
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
"""What the compiler asks of a card. Source: NVIDIA's H200 data sheet and CUDA's programming guide,
compute capability 9.0."""
CAPABILITY = "9.0"
GIB = 2**30
CALL = re.compile(r'custom_call_target="([^"]+)"')
PRODUCTS = (
    r"= \w+\[([\d,]+)\]\S* dot\(.*lhs_batch_dims=\{\d",
    r"= \(?\w+\[([\d,]+)\].*__cublas\$.*lhs_batch_dimensions\":\[\"",
)
"""With batch axes, as XLA writes them: its own, and cuBLAS'."""
SIZES = ("width", "height", "num_frames")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="as atelier plan has it")
    for name in SIZES:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int)
    parser.add_argument("--only", default="", help="programs whose names begin so: step, decode")
    parser.add_argument("--eight-bit", choices=[*OF_EIGHT_BITS], help="blocks of 8-bit floats")
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
        told(name, program, time.perf_counter() - started)
        if args.moves:
            print(table(list(moves(program.as_text() or "")), args.longest))


def programs(
    model: str, sizes: dict[str, int], eight_bit: EightBitProducts | None = None
) -> dict[str, Traced]:
    """A row's step of each phase, and its decoding, traced.

    Args:
        eight_bit: with blocks of 8 bits instead of exact ones, multiplied so.
    """
    devices = get_topology_desc(platform="cuda", target_config=H200, topology="1x1x1").devices[:1]
    layout = Layout(make_mesh(MeshShape().over(1), devices), kernel_for(devices[0], "bfloat16"))
    rounding = Rounding("instead", kind_of("gpu", CAPABILITY)) if eight_bit else None
    pipeline = abstract(
        model, "bfloat16", layout.of_parameter, swap_experts=False, rounding=rounding
    )
    preset = {"quality": OF_EIGHT_BITS[eight_bit]} if eight_bit else {}
    (fields,) = warmup.requests(pipeline.spec, [{**preset, **sizes}])
    prepared = warmup.prepare(pipeline, fields)
    tracer = Tracer(pipeline, layout)
    row = tracer.encode(prepared.inputs).out_info
    values: dict[str, Any] = {step.phase: step.values for step in prepared.steps}
    steps = {f"step {phase}": tracer.step(phase, some, row) for phase, some in values.items()}
    return {**steps, "decode": tracer.decode(row)}


def told(name: str, program: Compiled, seconds: float) -> None:
    text = program.as_text() or ""
    calls = Counter(CALL.findall(text))
    found: Any = program.memory_analysis()
    weights, temporary = (
        size / GIB for size in (found.argument_size_in_bytes, found.temp_size_in_bytes)
    )
    print(
        f"{name}: {seconds:.0f} s to compile; {weights:.2f} GiB of weights and inputs,"
        f" {temporary:.2f} GiB beside them"
    )
    for target, count in sorted(calls.items()):
        print(f"  {target}: {count}")
    print(f"  largest product of a batch: {largest(text):.3g} elements")


def largest(text: str) -> float:
    """Elements of the largest result of a product that has batch axes, heads being one."""
    shapes = [shape for product in PRODUCTS for shape in re.findall(product, text)]
    return max((math.prod(map(float, shape.split(","))) for shape in shapes), default=0.0)


if __name__ == "__main__":
    main()
