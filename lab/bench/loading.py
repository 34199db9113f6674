"""Speed of loading weights from disk, compared with plain reads. Not a test.

    python -m lab.bench.loading [--folder /where/the/disk/is] [--double 1 --single 2] [--rounds 3]
    python -m lab.bench.loading --read-only --double 3 --single 6 --rounds 9

Writes a bfloat16 checkpoint of the Flux transformer at full width, with a depth that fits this
machine. Loads it onto the default device: cold (the page cache drops the file before each round)
and warm. Each round also reads the disk directly past the page cache, with one thread and with
several, with the loader's request size and concurrency; the better rate counts as the disk's. Every
other round starts with the loader.

"Read only" is the loader without a device, which is an accelerator loader's work on the host. A
CPU's arrays are new memory, whose pages cost the time of "fresh memory", and the processor
transposes kernels: with few cores, these limit the speed, not the disk.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from deploy.cli.options import count
from models.checkpoint.direct_io import BufferPool
from models.checkpoint.key_mapping import source
from models.flux.config import FluxConfig
from models.flux.key_mapping import RENAMES
from models.flux.network import FluxTransformer
from models.flux.published import FLUX_DEV
from models.loading.abstract import abstract_module
from models.weights import loader
from models.weights.device_transfer import Leaf, LeafTransfer, OnDevice, choose_transfer

BLOCK = 16 << 20
"""Bytes of a plain read."""
READERS = 8
"""Threads of the parallel plain read."""


def main() -> None:
    options = arguments()
    depth = {"num_layers": options.double, "num_single_layers": options.single}
    config = FluxConfig.from_dict({**FLUX_DEV["transformer"], **depth})
    module = abstract_module(FluxTransformer, config, param_dtype="bfloat16")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        file = write(module, Path(folder))
        size = file.stat().st_size
        print(f"{size / 1e9:.2f} GB onto {jax.devices()[0].device_kind}, {os.cpu_count()} cores")
        load(module, file)  # once before the rounds, to compile and import
        rows = [one_round(module, file, size, options.read_only, n) for n in range(options.rounds)]
    for name in rows[0]:
        rates = [row[name] for row in rows]
        print(f"{name:>28}: {median(rates):5.2f} ({min(rates):.2f} to {max(rates):.2f})")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=folder, help="on the disk that is to be measured")
    parser.add_argument("--double", type=int, default=1, help="double blocks of the checkpoint")
    parser.add_argument("--single", type=int, default=2, help="single blocks of the checkpoint")
    parser.add_argument("--rounds", type=count, default=3)
    parser.add_argument("--read-only", action="store_true", help="no device behind the loader")
    return parser.parse_args()


def folder(text: str) -> Path:
    """Argument type: a folder whose files support reads past the page cache."""
    try:
        with tempfile.NamedTemporaryFile(dir=text) as file:
            os.close(os.open(file.name, os.O_RDONLY | os.O_DIRECT))
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error.strerror}") from None
    return Path(text)


def one_round(
    module: nnx.Module, file: Path, size: int, is_read_only: bool, number: int
) -> dict[str, float]:
    """GB/s of each measurement in sequence, and the loader's share of the disk's rate."""
    measurements: dict[str, Callable[[], None]] = {
        "disk, one thread": lambda: plain_read(file, size, 1),
        f"disk, {READERS} threads": lambda: plain_read(file, size, READERS),
        "read only, cold": lambda: load(module, file, Nowhere),
        "load, cold": lambda: load(module, file),
    }
    if is_read_only:
        del measurements["load, cold"]
    rates = {}
    for name, measurement in list(measurements.items())[:: -1 if number % 2 else 1]:
        forget(file)
        rates[name] = size / seconds(measurement) / 1e9
    disk = max(rates[name] for name in rates if name.startswith("disk"))
    shares = {name: rates[name] / disk for name in measurements if not name.startswith("disk")}
    if not is_read_only:
        rates["load, warm"] = size / seconds(lambda: load(module, file)) / 1e9
        rates["fresh memory"] = size / seconds(lambda: touch(size)) / 1e9
    return {
        **{
            f"{name}, GB/s": rates[name]
            for name in [*measurements, *(rates.keys() - measurements.keys())]
        },
        **{f"{name.partition(',')[0]}, of the disk": share for name, share in shares.items()},
    }


def load(
    module: nnx.Module,
    file: Path,
    lay: Callable[[Leaf, BufferPool], LeafTransfer] = choose_transfer,
) -> None:
    loaded = loader.load(module, file.parent, RENAMES, transfer=lay)
    jax.block_until_ready(nnx.state(loaded))


class Nowhere(OnDevice):
    """Reads all bytes of a leaf and reduces them to a number."""

    def take(self, layer: int | None, read: np.ndarray | None) -> None:
        if read is not None:
            self._pool.give(read)

    def array(self) -> jax.Array:
        return jnp.zeros(())


def touch(size: int) -> None:
    """Touch every page of new memory."""
    np.empty(size, np.uint8)[:: mmap.PAGESIZE] = 1


def plain_read(file: Path, size: int, readers: int) -> None:
    """Read every byte of the file past the page cache into reused memory."""
    descriptor = os.open(file, os.O_RDONLY | os.O_DIRECT)

    def read(first: int) -> None:
        with mmap.mmap(-1, BLOCK) as memory:
            for start in range(first * BLOCK, size, readers * BLOCK):
                os.preadv(descriptor, [memory], start)

    with ThreadPoolExecutor(readers) as threads:
        list(threads.map(read, range(readers)))
    os.close(descriptor)


def forget(file: Path) -> None:
    """Drop the file from the page cache, so that the next read uses the disk."""
    descriptor = os.open(file, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def seconds(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def write(module: nnx.Module, folder: Path) -> Path:
    """Write a checkpoint with the module's keys and shapes in diffusers' layout; numbers repeat."""
    entries: dict[str, dict[str, object]] = {}
    end = 0
    for key, shape in stored_shapes(module).items():
        start, end = end, end + 2 * int(np.prod(shape))
        entries[key] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    numbers = np.random.default_rng(0).integers(0x3C00, 0x3F80, BLOCK // 2, np.uint16).tobytes()
    path = folder / "diffusion_pytorch_model.safetensors"
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for start in range(0, end, BLOCK):
            file.write(numbers[: end - start])
        os.fsync(file.fileno())
    return path


def stored_shapes(module: nnx.Module) -> dict[str, tuple[int, ...]]:
    shapes = {}
    for path, leaf in loader.flat_parameters(module).items():
        layered = source(path, 0, RENAMES) is not None and source(path, None, RENAMES) is None
        for layer in range(leaf.shape[0]) if layered else [None]:
            shape = leaf.shape[1:] if layered else leaf.shape
            key = source(path, layer, RENAMES)
            assert key is not None, path
            shapes[key] = shape[::-1] if path.endswith("kernel") else shape
    return shapes


if __name__ == "__main__":
    main()
