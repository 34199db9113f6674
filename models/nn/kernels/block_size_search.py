"""Block size search: `python -m models.nn.kernels.block_size_search --help`.

If a device of the chip is attached, candidates are timed. Otherwise they are compiled for the chip
and ranked by the compiler's schedule: the cycles of one block times the blocks of the sequence. The
rank is not a time: it ignores memory traffic (among equals, prefer more queries), and for splash
every block includes the work of the first and the last one.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from models.nn.kernels.block_sizes import (
    LANES,
    SUBLANES,
    TABLE,
    AttentionBlocks,
    Row,
    even,
    read,
    rounded,
    write,
)
from models.nn.kernels.compiler_schedule import cycles, dump_to
from models.nn.kernels.kernel import AttentionOutput
from models.nn.kernels.select import flash_kernel, uses_transposed_kernel
from models.nn.kernels.splash import key_parts
from models.nn.kernels.wide_attention import fitting, over_blocks
from models.parallel import jax_internals
from models.parallel.axis_rules import auto_mesh

TOPOLOGIES = {
    "TPU v5 lite": "v5e:1x1",
    "TPU v5": "v5p:2x2x1",
    "TPU v6 lite": "v6e:1x1",
    "TPU7x": "tpu7x:2x2x1",
}
"""Topologies by chip, for which libtpu compiles without the chip."""

SIZES = (512, 1024, 2048, 3072, 5120)
PRODUCTS = (512, 1024)
RUNS = 5
HEADS, QUERY_BLOCKS, KEY_BLOCKS = 16, 4, 8
"""Sizes that are compiled. The compiler's dump grows with their product, and takes most of a minute
for 4,096. With fewer heads and keys, whole arrays stay in memory near the core."""


@dataclass(frozen=True)
class Case:
    """Attention shape for which the best block sizes are searched."""

    dtype: str
    dim: int
    queries: int
    keys: int


Cost = Callable[[Case, AttentionBlocks], float | None]
"""Function that returns the cost of blocks; None: they do not fit the chip's memory."""


def candidates(case: Case) -> Iterator[AttentionBlocks]:
    """Return candidate block sizes: distinct, equal, and no larger than the padded sequences."""
    queries = {even(case.queries, size, SUBLANES)[0] for size in SIZES}
    longest = rounded(case.keys, LANES)
    keys = {
        (kv, product)
        for kv, product in itertools.product((*SIZES, longest), (*PRODUCTS, longest))
        if product <= kv <= min(longest, max(SIZES)) and kv % product == 0
    }
    for q, (kv, product) in itertools.product(sorted(queries), sorted(keys)):
        yield AttentionBlocks(q, kv, product)


def timed(case: Case, blocks: AttentionBlocks, device: jax.Device, heads: int) -> float | None:
    """Time an attention kernel: median seconds of a few runs after a warm-up."""
    kernel = flash_kernel(device, lambda *_: blocks, case.dtype)
    run = jax.jit(partial(kernel, scale=case.dim**-0.5))
    q, k = (
        jax.device_put(jnp.ones((1, tokens, heads, case.dim), case.dtype), device)
        for tokens in (case.queries, case.keys)
    )
    if not _fits(lambda: jax.block_until_ready(run(q, k, k))):
        return None
    seconds = []
    for _ in range(RUNS):
        start = time.perf_counter()
        jax.block_until_ready(run(q, k, k))
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def scheduled(case: Case, blocks: AttentionBlocks, device: jax.Device, dumps: Path) -> float | None:
    """Return the cycles of one attention head in the compiler's schedule for a chip.

    Args:
        dumps: folder to which this process's libtpu writes its schedules.
    """
    if uses_transposed_kernel(device, case.dtype):
        return transposed_kernel_cycles(case, blocks, device, dumps)
    counts: dict[str, int] = {}
    if not _fits(lambda: counts.update(cycles(dumps, partial(_compile, device, case, blocks)))):
        return None
    by_mask = {"_segmented" in name: count for name, count in counts.items() if "splash" in name}
    rows = even(case.queries, blocks.q, SUBLANES)[1] // blocks.q
    return sum(
        rows * -(-(end - start) // part.kv) * by_mask[(end - start) % part.kv != 0]
        for start, end, part in key_parts(case.keys, blocks)
    )


def _compile(device: jax.Device, case: Case, blocks: AttentionBlocks) -> object:
    return compile_for(device, case.dtype, case.dim, blocks)


def transposed_kernel_cycles(
    case: Case, blocks: AttentionBlocks, device: jax.Device, dumps: Path
) -> float | None:
    """Return the cycles of one head with the kernel of `wide_attention`.

    Each block runs the middle part, and each row of blocks the first and the last part. Blocks that
    overflow are not counted.
    """
    chosen = fitting(blocks, case.queries, case.keys)
    mesh = auto_mesh([device], ("one",))
    place = NamedSharding(mesh, PartitionSpec())

    def shaped(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, case.dtype, sharding=place)

    dim = rounded(case.dim, SUBLANES)
    # Two blocks per axis, the last ones incomplete: the compiler's dump grows with the grid.
    queries, keys = 2 * chosen.q - SUBLANES, 2 * chosen.kv - SUBLANES
    arguments = shaped(2, dim, queries), shaped(2, keys, dim), shaped(2, dim, keys)

    def compile(parts: Collection[str]) -> object:
        run = partial(over_blocks, blocks=chosen, scale=1.0, parts=parts)
        with jax.set_mesh(mesh):
            return jax.jit(run).lower(*arguments, shaped(2 * chosen.kv, LANES)).compile()

    counts: list[int] = []
    for parts in ((), ("first", "last")):
        by_file: dict[str, int] = {}
        if not _fits(lambda p=parts, f=by_file: f.update(cycles(dumps, partial(compile, p)))):  # type: ignore[misc]
            return None
        counts += [count for name, count in by_file.items() if "transposed_attention" in name]
    middle, ends = counts
    rows, each = -(-case.queries // chosen.q), -(-case.keys // chosen.kv)
    return rows * (each * middle + ends - middle)


def compile_for(
    device: jax.Device, dtype: str, dim: int, blocks: AttentionBlocks
) -> jax.stages.Compiled:
    """Compile an attention kernel with and without a mask, for a sequence of many blocks.

    Short sequences may stay in memory near the core, where blocks need no separate buffers.
    """
    mesh = auto_mesh([device], ("one",))
    kernel = flash_kernel(device, lambda *_: blocks, dtype)

    def shaped(shape: tuple[int, ...], dtype: str) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, PartitionSpec()))

    queries, keys = QUERY_BLOCKS * blocks.q, KEY_BLOCKS * blocks.kv
    q, k = (shaped((1, tokens, HEADS, dim), dtype) for tokens in (queries, keys))
    counted = shaped((keys,), "bool")

    def run(q: jax.Array, k: jax.Array, keys: jax.Array) -> AttentionOutput:
        return kernel(q, k, k, scale=1.0, keys=keys)

    with jax.set_mesh(mesh):
        return jax.jit(run).lower(q, k, counted).compile()


def search(case: Case, cost: Cost) -> list[tuple[float, AttentionBlocks]]:
    """Rank the block sizes that compile, the best first; print each result, which takes minutes."""
    results = []
    for blocks in candidates(case):
        price = cost(case, blocks)
        shown = "does not fit" if price is None else f"{price:.6g}"
        print(f"{blocks.q:5} {blocks.kv:5} {blocks.kv_compute:5}  {shown}", flush=True)
        if price is not None:
            results.append((price, blocks))
    return sorted(results, key=lambda pair: pair[0])


def main(arguments: list[str] | None = None) -> None:
    """Search the best attention block sizes of one case for a chip; optionally write them."""
    options = _parser().parse_args(arguments)
    case = Case(options.dtype, options.dim, options.queries, options.keys)
    devices = [device for device in jax.devices() if device.device_kind == options.chip]
    source = f"timed: jax {jax.__version__}"
    if devices:
        results = search(case, partial(timed, device=devices[0], heads=options.heads))
    else:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["LIBTPU_INIT_ARGS"] = dump_to(folder)
            device = jax_internals.get_topology_desc(TOPOLOGIES[options.chip], "tpu").devices[0]
            results = search(case, partial(scheduled, device=device, dumps=Path(folder)))
        source = f"compiled: jax {jax.__version__}, libtpu {version('libtpu')}"
    if not results:
        raise SystemExit(f"no blocks fit {options.chip}")
    best = results[0][1]
    row = Row(
        options.chip, case.dtype, case.dim, case.keys, best.q, best.kv, best.kv_compute, source
    )
    print(row)
    if options.write:
        others = [old for old in read(options.table) if old.key != row.key]
        write([row, *others], options.table)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("chip", help="as jax.Device.device_kind has it, such as 'TPU v6 lite'")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--dim", type=int, default=128, help="of a head")
    parser.add_argument("--queries", type=int, required=True)
    parser.add_argument("--keys", type=int, required=True, help="the row is for these and more")
    parser.add_argument("--heads", type=int, default=8, help="when timed")
    parser.add_argument("--write", action="store_true", help="put the best into the table")
    parser.add_argument("--table", type=Path, default=TABLE)
    return parser


def _fits(run: Callable[[], object]) -> bool:
    try:
        run()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return False
    return True


if __name__ == "__main__":
    main()
