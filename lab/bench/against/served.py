"""Images a second of a server next to FastAPI with diffusers, seen by several clients.

    python -m lab.bench.against.served [FOLDER] [--clients 1 4 8] [--seconds 20] [--turns 3]

Both serve the same checkpoint (default: the demo Flux) in float32 on this machine's CPU, and take
turns: while one is loaded, the other is idle. Clients send the next request when they have the PNG
of the last, each with its own prompt and seed. The other side is the server of diffusers' examples:
one pipeline behind a lock, because pipelines are not thread-safe.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import itertools
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import httpx

import models.demo
from deploy.bench.serving.compare import ratios, spread
from deploy.cli.options import count
from tests.conftest import COMPILED
from tests.e2e.system import START_S, System, until

DEMO = Path(models.demo.__file__).parent
FIELDS = ("num_inference_steps", "width", "height", "true_cfg_scale", "guidance_scale",
          "negative_prompt", "max_sequence_length")  # fmt: skip
"""Request fields whose defaults the diffusers server gets, too."""
WARM_UP = 2
NUMBERS = itertools.count()
Fields = dict[str, Any]


def main(words: Sequence[str] | None = None) -> None:
    """Measure both servers, and print a line for each number of clients."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=DEMO / "flux")
    parser.add_argument("--clients", type=count, nargs="+", default=(1, 4, 8))
    parser.add_argument("--seconds", type=float, default=20, help="of a turn")
    parser.add_argument("--turns", type=count, default=3, help="of each side")
    parser.add_argument("--serve", type=int, metavar="FD", help=argparse.SUPPRESS)
    args = parser.parse_args(words)
    if args.serve is not None:
        serve(args.folder, args.serve)
        return
    with tempfile.TemporaryDirectory() as state, diffusers_server(args.folder) as theirs:
        os.environ.setdefault(COMPILED, f"{state}/compiled")
        model = f"m={args.folder.resolve()}"
        system = System(Path(state) / "state", "--dtype", "float32", "--model", model)
        try:
            fields = defaults(system.url)
            sides = [Side(f"{system.url}/v1/generate", fields), Side(f"{theirs}/generate", fields)]
            asyncio.run(measure(sides, args))
        finally:
            system.close()


class Side:
    """A server with its URL, and the images a second of each turn."""

    def __init__(self, url: str, fields: Fields) -> None:
        self.url, self.fields = url, fields

    async def rate(self, clients: int, seconds: float) -> float:
        """Images a second for this number of clients, each with one request at a time."""
        done, started = 0, time.perf_counter()

        async def client(http: httpx.AsyncClient) -> None:
            nonlocal done
            while True:  # at least once
                await self.generate(http)
                done += 1
                if time.perf_counter() >= started + seconds:
                    return

        async with httpx.AsyncClient(timeout=600, trust_env=False) as http:
            await asyncio.gather(*(client(http) for _ in range(clients)))
        return done / (time.perf_counter() - started)

    async def generate(self, http: httpx.AsyncClient) -> None:
        number = next(NUMBERS)
        body = {**self.fields, "prompt": f"a red circle, number {number}", "seed": number}
        answer = await http.post(self.url, json=body, headers={"Accept": "image/png"})
        answer.raise_for_status()
        assert answer.content.startswith(b"\x89PNG")


async def measure(sides: Sequence[Side], args: argparse.Namespace) -> None:
    for clients in args.clients:
        for side in sides:
            await side.rate(clients, WARM_UP)
        turns = [[await side.rate(clients, args.seconds) for side in sides]
                 for _ in range(args.turns)]  # fmt: skip
        ours, theirs = zip(*turns, strict=True)
        gains = ratios([[1 / rate] for rate in ours], [[1 / rate] for rate in theirs])
        print(
            f"{clients} clients: {median(ours):.2f} images a second, theirs {median(theirs):.2f};"
            f" ratio {spread(gains)}",
            flush=True,
        )


def defaults(url: str) -> Fields:
    """The only model's defaults of the fields that both sides know."""
    (model,) = httpx.get(f"{url}/v1/models", trust_env=False).json()["data"]
    chosen = model["defaults"]
    return {name: chosen[name] for name in FIELDS if chosen.get(name) is not None}


@contextmanager
def diffusers_server(folder: Path) -> Iterator[str]:
    """Run `serve` as a process; yields its URL once it answers."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        command = [sys.executable, "-m", "lab.bench.against.served", str(folder)]
        process = subprocess.Popen(
            [*command, "--serve", str(listener.fileno())], pass_fds=[listener.fileno()]
        )
        try:
            until(lambda: answers(url), "FastAPI with diffusers answers", START_S)
            yield url
        finally:
            process.terminate()
            process.wait()


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=1, trust_env=False).is_success
    except httpx.HTTPError:
        return False


def serve(folder: Path, descriptor: int) -> None:
    """Serve one diffusers pipeline of a checkpoint with FastAPI, one request at a time."""
    import diffusers
    import torch
    import uvicorn
    from fastapi import Body, FastAPI, Response

    pipeline = diffusers.DiffusionPipeline.from_pretrained(folder).to(torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    app, lock = FastAPI(), threading.Lock()

    @app.get("/health")
    def health() -> str:
        return "ok"

    @app.post("/generate")
    def generate(fields: dict[str, Any] = Body()) -> Response:  # noqa: B008
        seed = fields.pop("seed")
        with lock:
            generator = torch.Generator("cpu").manual_seed(seed)
            image = pipeline(**fields, generator=generator).images[0]
        file = io.BytesIO()
        image.save(file, "PNG")
        return Response(file.getvalue(), media_type="image/png")

    uvicorn.run(app, fd=descriptor, log_level="warning")


if __name__ == "__main__":
    main()
