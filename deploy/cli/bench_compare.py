"""`atelier bench compare`: the native worker and the diffusers worker of one checkpoint, in turns.

Each turn starts a whole system with one worker, so each has the device's memory alone. Both get the
same requests. docs/performance/bench.md explains the figures.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy.cli.options import (
    DTYPES,
    add_settings,
    count,
    not_negative,
    positive,
    settings_of,
    without_none,
)
from deploy.cli.output_files import HERE, check_writable
from deploy.cli.requirements import check_pools
from deploy.exit_codes import EXIT_FAILED, say

if TYPE_CHECKING:
    from deploy.bench.serving.server import Server
    from deploy.bench.serving.timed_request import TimedRequest
    from service.settings.settings import Settings

KEPT = ("log_level", "limits", "compile_cache", "executables")
"""Sections of the settings that hold in the compared systems."""
OF_CHECKPOINT = ("source", "dtype", "defaults", "warmup")
"""Settings of a model that hold for both backends."""
PATIENCE_S = 3600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `atelier bench compare`."""
    add_settings(parser)
    parser.add_argument(
        "--model",
        required=True,
        metavar="NAME-or-SOURCE",
        help="a model of the settings, a folder in diffusers' layout, or a hub id",
    )
    parser.add_argument("--dtype", choices=DTYPES, help="data type of the weights")
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="requests to send (JSON lines, see `bench serve --write-trace`)",
    )
    parser.add_argument(
        "--requests", type=count, default=4, metavar="N", help="without --trace: sent at once (4)"
    )
    for name in ("width", "height", "num-frames", "steps"):
        parser.add_argument(f"--{name}", type=count, metavar="N", help="default: the model's")
    parser.add_argument("--guidance", type=not_negative, metavar="X", help="guidance scale")
    parser.add_argument("--turns", type=count, default=3, metavar="N", help="of each worker (3)")
    parser.add_argument(
        "--patience", type=positive, default=PATIENCE_S, metavar="S",
        help=f"time limit of a request, and of the trace ({PATIENCE_S:.0f})",
    )  # fmt: skip
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write every time as JSON; -: standard output"
    )


def run(args: argparse.Namespace) -> int:
    """Run `atelier bench compare`; return the exit code.

    Raises: UsageError, ConfigError: a system did not start.
    """
    check_writable(args.json)
    check_pools()
    from rich.console import Console

    from deploy.bench.serving.compare import compared, show
    from deploy.bench.serving.load import NotMeasured

    with tempfile.TemporaryDirectory() as folder:
        turns = Turns(args, Path(folder))
        try:
            report = compared(args.model, turns.run, args.turns).as_json()
        except NotMeasured as error:
            say(f"atelier: {error}")
            return EXIT_FAILED
    text = json.dumps(report, indent=1)
    if args.json == HERE:
        print(text)
    else:
        show(report, Console())
        if args.json:
            args.json.write_text(f"{text}\n", "utf-8")
    return 0


class Turns:
    """Turns of one comparison, which send the same requests.

    Args:
        folder: for the systems' state.
    """

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self._args = args
        self._folder = folder
        self._settings = settings_of(args)
        is_named = args.model in self._settings.models
        self.model = args.model if is_named else "compared"
        self._trace: list[TimedRequest] = []

    def run(self, backend: str) -> dict[str, Any]:
        """Start a system, send the requests, and stop it; return the times.

        Raises: NotMeasured, UsageError, ConfigError.
        """
        import asyncio

        from deploy.local.running import running

        settings = of_backend(self._settings, self.model, backend, self._args, self._folder)
        with running(settings, self._folder / "atelier.toml") as url:
            return asyncio.run(self._sent(url))

    async def _sent(self, url: str) -> dict[str, Any]:
        from deploy.bench.serving.compare import CONNECTIONS, measured_turn
        from deploy.bench.serving.server import Server

        async with Server(url, {}, CONNECTIONS) as server:
            self._trace = self._trace or await self._planned(server)
            return await measured_turn(server, self._trace, self._args.patience)

    async def _planned(self, server: Server) -> list[TimedRequest]:
        """Return the comparison's requests: a trace file's, or the defaults. Raises: UsageError."""
        from deploy.bench.serving.compare import default_trace
        from deploy.bench.serving.timed_request import read_trace

        args = self._args
        if args.trace:
            model = {"model": self.model}
            return [
                each.model_copy(update={"request": {**each.request, **model}})
                for each in read_trace(args.trace)
            ]
        fields = without_none(
            width=args.width,
            height=args.height,
            num_frames=args.num_frames,
            num_inference_steps=args.steps,
            guidance_scale=args.guidance,
        )
        listed = await server.listed()
        return default_trace(self.model, args.requests, fields, listed[self.model])


def of_backend(
    settings: Settings, name: str, backend: str, args: argparse.Namespace, folder: Path
) -> Settings:
    """Return the settings of a system with one worker, of this backend, on one device.

    The native worker has the settings' model and pool, if they name it; the diffusers worker has
    what holds for both.
    """
    from service.settings.models import ModelSettings
    from service.settings.pools import PoolSettings
    from service.settings.server import ServerSettings

    fields = type(settings).model_fields
    values = {
        key: field.get_default(call_default_factory=True)
        for key, field in fields.items()
        if key not in KEPT
    }
    model = settings.models.get(name) or ModelSettings(source=args.model)
    pool = next((pool for pool in settings.pools.values() if pool.models == (name,)), None)
    if backend == "diffusers":
        shared = {key: getattr(model, key) for key in OF_CHECKPOINT}
        model, pool = ModelSettings(**shared), None
    model = model.model_copy(update=without_none(backend=backend, dtype=args.dtype))
    pool = pool or PoolSettings(model=name, devices=1)
    values |= {
        "state_dir": folder / "state",
        "compile_cache": settings.compile_cache or folder / "compiled",
        "server": ServerSettings(port=0),
        "models": {name: model},
        "pools": {name: pool},
    }
    return settings.model_copy(update=values)
