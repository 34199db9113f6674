"""`atelier bench serve`: open-loop load on a running server.

Requests are sent at their planned times, independent of responses. The report has throughput,
waits, refusals, goodput, fairness, and the service's overhead over the engine.
docs/performance/bench-serve.md explains it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deploy.cli.options import count, positive, whole
from deploy.cli.output_files import HERE, check_writable
from deploy.cli.remote import add_server
from deploy.cli.request_options import named
from deploy.exit_codes import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_UNREACHABLE, UsageError, say

SCALES = (1.0, 1.5, 2.0, 3.0, 4.0, 8.0)
"""Scales of goodput: multiples of a request's time on the unloaded server."""
CONNECTIONS = 256
PATIENCE_S = 600.0
ALONE = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `atelier bench serve`."""
    add_server(parser)
    _add_load(parser)
    _add_measuring(parser)


def _add_load(parser: argparse.ArgumentParser) -> None:
    load = parser.add_argument_group("the load")
    load.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="replay these requests (JSON lines, see --write-trace)",
    )
    load.add_argument(
        "--mix",
        type=Path,
        metavar="FILE",
        help="generate requests from this TOML file; options override it",
    )
    load.add_argument(
        "--shape",
        action="append",
        type=named,
        metavar="MODEL[,FIELD=VALUE…]",
        help="fields of a request, and share=X; repeatable (default: every model of the server)",
    )
    load.add_argument(
        "--tenant",
        action="append",
        type=named,
        metavar="NAME[,…]",
        help="share=X,weight=X,key_variable=NAME; repeatable",
    )
    load.add_argument(
        "--deadlines",
        type=positive,
        nargs="+",
        metavar="X",
        help="deadlines, as multiples of a request's time alone",
    )
    load.add_argument("--rate", type=positive, metavar="X", help="requests per second (default: 1)")
    load.add_argument(
        "--seconds", type=positive, metavar="X", help="length of the load in seconds (default: 60)"
    )
    load.add_argument("--seed", type=int, metavar="N", help="random seed of the load (default: 0)")
    load.add_argument(
        "--repeats",
        type=float,
        metavar="SHARE",
        help="share of requests that repeat an earlier one, for a server with `queue.reuse`",
    )
    load.add_argument("--write-trace", type=Path, metavar="FILE", help="write the load as a trace")


def _add_measuring(parser: argparse.ArgumentParser) -> None:
    measuring = parser.add_argument_group("what is measured")
    measuring.add_argument(
        "--alone", type=whole, default=ALONE, metavar="N",
        help=f"single requests of each shape first; 0: none, and no goodput (default: {ALONE})",
    )  # fmt: skip
    measuring.add_argument(
        "--alone-from",
        type=Path,
        metavar="FILE",
        help="read single-request times from an earlier --json",
    )
    measuring.add_argument(
        "--scales",
        type=positive,
        nargs="+",
        default=SCALES,
        metavar="X",
        help="multiples of the single-request time that goodput allows",
    )
    measuring.add_argument(
        "--connections", type=count, default=CONNECTIONS, metavar="N",
        help=f"maximum number of open connections (default: {CONNECTIONS})",
    )  # fmt: skip
    measuring.add_argument(
        "--patience", type=positive, default=PATIENCE_S, metavar="S",
        help="after the last request, and for each one alone; what is not done then is canceled"
        f" ({PATIENCE_S:.0f})",
    )  # fmt: skip
    measuring.add_argument(
        "--no-fetch", dest="fetch", action="store_false", help="do not download outputs"
    )
    measuring.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write the whole report as JSON; -: standard output",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run `atelier bench serve`; return the exit code. Raises: UsageError.

    Exit codes are those of `atelier generate`; 1 if no request succeeded.
    """
    import asyncio

    import uvloop

    from deploy.bench.serving.load import NotMeasured
    from service.client import ApiError, ServiceUnreachable

    check_writable(arguments.json)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            report = runner.run(_measured(arguments))
    except ServiceUnreachable as error:
        say(f"atelier: {error}")
        return EXIT_UNREACHABLE
    except (ApiError, NotMeasured) as error:
        say(f"atelier: {error}")
        return EXIT_FAILED
    _print(report, arguments.json)
    if report["interrupted"]:
        return EXIT_INTERRUPTED
    return 0 if report["waits"]["all"]["succeeded"] else EXIT_FAILED


async def _measured(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run a load benchmark; return its report.

    Raises: UsageError, NotMeasured, ApiError, ServiceUnreachable.
    """
    from deploy.bench.serving.report import report
    from deploy.bench.serving.run import measure, models_of
    from deploy.bench.serving.server import Server
    from deploy.cli.bench_load import keys_of, load_of, plan_of, unvalidated_mix, url_of

    mix_fields = unvalidated_mix(arguments)
    keys, url = keys_of(arguments.key, mix_fields), url_of(arguments.server)
    async with Server(url, keys, arguments.connections, arguments.fetch) as server:
        mix, entries = load_of(arguments, mix_fields, await models_of(server, keys))
        done = await measure(server, url, entries, plan_of(arguments, entries, mix), say)
    return report(done, arguments.scales, {tenant.name: tenant.weight for tenant in mix.tenants})


def _print(report: Mapping[str, Any], file: Path | None) -> None:
    """Print a load report as tables, and write it as JSON; `-`: print JSON instead of tables."""
    from rich.console import Console

    from deploy.bench.serving.table import show

    text = json.dumps(report, indent=1)
    if file == HERE:
        return print(text)
    show(report, Console())
    if file:
        try:
            file.write_text(f"{text}\n", "utf-8")
        except OSError as error:
            raise UsageError(f"can't write {str(file)!r}: {error.strerror}") from None
