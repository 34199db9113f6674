"""Search for block sizes: `python -m models.nn.kernels.block_size_search --help`.

Where a device of the chip is there, candidates are timed. Where it is not, they are compiled for it
and ranked by the compiler's own schedule: the cycles of one block times the blocks of the sequence.
That is no time: it knows nothing of memory traffic (prefer more queries among equals), and of
splash counts in every block what the first and the last one do.
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
from models.nn.kernels.kernel import Attended
from models.nn.kernels.select import flash_kernel, is_upright
from models.nn.kernels.splash import cuts
from models.nn.kernels.wide_attention import fitting, over_blocks
from models.parallel import jax_internals
from models.parallel.axis_rules import auto_mesh

TOPOLOGIES = {
    "TPU v5 lite": "v5e:1x1",
    "TPU v5": "v5p:2x2x1",
    "TPU v6 lite": "v6e:1x1",
    "TPU7x": "tpu7x:2x2x1",
}
"""Chips that libtpu compiles for without one."""

SIZES = (512, 1024, 2048, 3072, 5120)
PRODUCTS = (512, 1024)
RUNS = 5
HEADS, QUERY_BLOCKS, KEY_BLOCKS = 16, 4, 8
"""Sizes that are compiled. The compiler's dump grows with their product, and takes the better part
of a minute for 4,096; of fewer heads and keys it keeps some near the core as a whole."""


@dataclass(frozen=True)
class Case:
    """Case that blocks are searched for."""

    dtype: str
    dim: int
    queries: int
    keys: int


Cost = Callable[[Case, AttentionBlocks], float | None]
"""Cost of blocks; None: they do not fit the chip's memory."""


def candidates(case: Case) -> Iterator[AttentionBlocks]:
    """Blocks no larger than the padded sequences, equal ones, each once."""
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
    """Seconds, the median of a few runs after one that warms up."""
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
    """Cycles of one head, as the compiler has laid them out for a chip.

    Args:
        dumps: where this process's libtpu writes its schedules.
    """
    if is_upright(device, case.dtype):
        return upright_cycles(case, blocks, device, dumps)
    found: dict[str, int] = {}
    if not _fits(lambda: found.update(cycles(dumps, partial(_compile, device, case, blocks)))):
        return None
    by_mask = {"_segmented" in name: count for name, count in found.items() if "splash" in name}
    rows = even(case.queries, blocks.q, SUBLANES)[1] // blocks.q
    return sum(
        rows * -(-(end - start) // part.kv) * by_mask[(end - start) % part.kv != 0]
        for start, end, part in cuts(case.keys, blocks)
    )


def _compile(device: jax.Device, case: Case, blocks: AttentionBlocks) -> object:
    return compile_for(device, case.dtype, case.dim, blocks)


def upright_cycles(
    case: Case, blocks: AttentionBlocks, device: jax.Device, dumps: Path
) -> float | None:
    """Return the cycles of the parts that run.

    Each block has the one in the middle, and each row of blocks the first and the last. A block
    that overflows is not among them.
    """
    chosen = fitting(blocks, case.queries, case.keys)
    mesh = auto_mesh([device], ("one",))
    place = NamedSharding(mesh, PartitionSpec())

    def shaped(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, case.dtype, sharding=place)

    dim = rounded(case.dim, SUBLANES)
    # Two blocks each way, the last ones not whole: the compiler's dump grows with the grid.
    queries, keys = 2 * chosen.q - SUBLANES, 2 * chosen.kv - SUBLANES
    arguments = shaped(2, dim, queries), shaped(2, keys, dim), shaped(2, dim, keys)

    def compile(parts: Collection[str]) -> object:
        run = partial(over_blocks, blocks=chosen, scale=1.0, parts=parts)
        with jax.set_mesh(mesh):
            return jax.jit(run).lower(*arguments, shaped(2 * chosen.kv, LANES)).compile()

    counts: list[int] = []
    for parts in ((), ("first", "last")):
        found: dict[str, int] = {}
        if not _fits(lambda p=parts, f=found: f.update(cycles(dumps, partial(compile, p)))):  # type: ignore[misc]
            return None
        counts += [count for name, count in found.items() if "upright" in name]
    middle, ends = counts
    rows, each = -(-case.queries // chosen.q), -(-case.keys // chosen.kv)
    return rows * (each * middle + ends - middle)


def compile_for(
    device: jax.Device, dtype: str, dim: int, blocks: AttentionBlocks
) -> jax.stages.Compiled:
    """Compile with a mask and without one, in a sequence of many blocks.

    Short ones the compiler may keep near the core as a whole, where blocks then need no buffers of
    their own.
    """
    mesh = auto_mesh([device], ("one",))
    kernel = flash_kernel(device, lambda *_: blocks, dtype)

    def shaped(shape: tuple[int, ...], dtype: str) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, PartitionSpec()))

    queries, keys = QUERY_BLOCKS * blocks.q, KEY_BLOCKS * blocks.kv
    q, k = (shaped((1, tokens, HEADS, dim), dtype) for tokens in (queries, keys))
    counted = shaped((keys,), "bool")

    def run(q: jax.Array, k: jax.Array, keys: jax.Array) -> Attended:
        return kernel(q, k, k, scale=1.0, keys=keys)

    with jax.set_mesh(mesh):
        return jax.jit(run).lower(q, k, counted).compile()


def search(case: Case, cost: Cost) -> list[tuple[float, AttentionBlocks]]:
    """Candidates that fit, the best one first; each is said as it comes, for it takes minutes."""
    found = []
    for blocks in candidates(case):
        price = cost(case, blocks)
        said = "does not fit" if price is None else f"{price:.6g}"
        print(f"{blocks.q:5} {blocks.kv:5} {blocks.kv_compute:5}  {said}", flush=True)
        if price is not None:
            found.append((price, blocks))
    return sorted(found, key=lambda pair: pair[0])


def main(arguments: list[str] | None = None) -> None:
    """Search the best block sizes of one case on this machine's device."""
    asked = _parser().parse_args(arguments)
    case = Case(asked.dtype, asked.dim, asked.queries, asked.keys)
    here = [device for device in jax.devices() if device.device_kind == asked.chip]
    source = f"timed: jax {jax.__version__}"
    if here:
        found = search(case, partial(timed, device=here[0], heads=asked.heads))
    else:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["LIBTPU_INIT_ARGS"] = dump_to(folder)
            device = jax_internals.get_topology_desc(TOPOLOGIES[asked.chip], "tpu").devices[0]
            found = search(case, partial(scheduled, device=device, dumps=Path(folder)))
        source = f"compiled: jax {jax.__version__}, libtpu {version('libtpu')}"
    if not found:
        raise SystemExit(f"no blocks fit {asked.chip}")
    best = found[0][1]
    row = Row(asked.chip, case.dtype, case.dim, case.keys, best.q, best.kv, best.kv_compute, source)
    print(row)
    if asked.write:
        others = [old for old in read(asked.table) if old.place != row.place]
        write([row, *others], asked.table)


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
