"""Rate of loading weights from an object store, compared with a plain ranged download. Not a test.

    python -m lab.bench.object_loading [--double 1 --single 2] [--rounds 5]

Writes a bfloat16 checkpoint of the Flux transformer at full width, with a depth that fits this
machine, and serves it over HTTP from another process, like S3. Alternates three measurements: the
same client downloads everything in the loader's ranges, with its concurrency, into reused memory;
the loader reads it without a device; the loader puts it onto the default device. Server and client
share the processor here, so only ratios are meaningful.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median

import jax
import numpy as np
import obstore
from flax import nnx

from deploy.cli.options import count
from lab.bench.loading import Nowhere, seconds, write
from models.checkpoint.hub import single_file
from models.checkpoint.object_file import CHUNK, STRETCH, ObjectFile, reference_of, store_at
from models.checkpoint.safetensors import ComponentFiles
from models.flux.config import FluxConfig
from models.flux.key_mapping import RENAMES
from models.flux.network import FluxTransformer
from models.flux.published import FLUX_DEV
from models.loading.abstract import abstract_module
from models.weights import loader
from models.weights.device_transfer import choose_transfer

ETAG = '"one"'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--double", type=int, default=1, help="double blocks of the checkpoint")
    parser.add_argument("--single", type=int, default=2, help="single blocks of the checkpoint")
    parser.add_argument("--rounds", type=count, default=5)
    options = parser.parse_args()
    depth = {"num_layers": options.double, "num_single_layers": options.single}
    config = FluxConfig.from_dict({**FLUX_DEV["transformer"], **depth})
    module = abstract_module(FluxTransformer, config, param_dtype="bfloat16")
    with tempfile.TemporaryDirectory() as folder:
        file = write(module, Path(folder))
        serving = f"from lab.bench.object_loading import serve; serve({str(file)!r})"
        server = subprocess.Popen([sys.executable, "-c", serving], stdout=subprocess.PIPE)
        try:
            assert server.stdout is not None
            point_at(int(server.stdout.readline()))
            measure(module, file.stat().st_size, options.rounds)
        finally:
            server.kill()


def point_at(port: int) -> None:
    os.environ |= {
        "AWS_ENDPOINT": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_SKIP_SIGNATURE": "true",
        "AWS_REGION": "here",
    }


def measure(module: nnx.Module, size: int, rounds: int) -> None:
    path = single_file("s3://bucket/model.safetensors")
    assert path is not None
    measurements: dict[str, Callable[[], object]] = {
        "plain ranged download": partial(download, path, size),
        "read only": partial(load, module, path, Nowhere),
        "load": partial(load, module, path, choose_transfer),
    }
    for measurement in measurements.values():
        measurement()  # once before the rounds, to compile and import
    rates: dict[str, list[float]] = {name: [] for name in measurements}
    for number in range(rounds):
        for name, measurement in list(measurements.items())[:: -1 if number % 2 else 1]:
            rates[name].append(size / seconds(measurement) / 1e9)
    print(f"{size / 1e9:.2f} GB onto {jax.devices()[0].device_kind}, {os.cpu_count()} cores")
    downloads = rates["plain ranged download"]
    for name, measured in rates.items():
        shares = [rate / reference for rate, reference in zip(measured, downloads, strict=True)]
        print(f"{name:>22}: {median(measured):5.2f} GB/s, {median(shares):4.2f} of the download")


def load(module: nnx.Module, path: Path, transfer: object) -> None:
    files = ComponentFiles("transformer", (path,))
    loaded = loader.load(module, files, RENAMES, transfer=transfer)
    jax.block_until_ready(nnx.state(loaded))


def download(path: Path, size: int) -> None:
    reference = reference_of(path)
    assert reference is not None
    store = store_at(reference.root)
    memory = np.empty((ObjectFile.readers, STRETCH), np.uint8)

    def read(reader: int) -> None:
        for start in range(reader * STRETCH, size, ObjectFile.readers * STRETCH):
            span = (start, min(start + STRETCH, size))
            done, answer = 0, obstore.get(store, reference.key, options={"range": span})
            for chunk in answer.stream(min_chunk_size=CHUNK):
                memory[reader, done : done + len(chunk)] = np.frombuffer(chunk, np.uint8)
                done += len(chunk)

    with ThreadPoolExecutor(ObjectFile.readers) as threads:
        list(threads.map(read, range(ObjectFile.readers)))


class Ranges(BaseHTTPRequestHandler):
    """Serves ranges of a file."""

    protocol_version = "HTTP/1.1"
    file: Path

    def do_HEAD(self) -> None:
        self._begin(200, self.file.stat().st_size)

    def do_GET(self) -> None:
        first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
        start, size = int(first), self.file.stat().st_size
        stop = min(int(last) + 1, size)
        self._begin(206, stop - start, f"bytes {start}-{stop - 1}/{size}")
        with self.file.open("rb") as file:
            while start < stop:
                start += os.sendfile(self.connection.fileno(), file.fileno(), start, stop - start)

    def _begin(self, status: int, length: int, span: str | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        self.send_header("ETag", ETAG)
        self.send_header("Last-Modified", "Sat, 28 Nov 2026 00:00:00 GMT")
        if span:
            self.send_header("Content-Range", span)
        self.end_headers()
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        pass


def serve(file: str) -> None:
    Ranges.file = Path(file)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Ranges)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
