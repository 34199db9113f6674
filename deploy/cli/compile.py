"""`atelier compile`: build a pool's executables without its accelerators, into a store."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from deploy.cli.options import Commands, add_settings, devices, settings_of
from deploy.cli.requirements import check_pools
from deploy.exit_codes import EXIT_FAILED, UsageError, say

if TYPE_CHECKING:
    from service.settings.settings import Settings
    from workers.building.stored import ProgramOutcome


def add(commands: Commands) -> None:
    """Add the command `atelier compile` and its options to the parser."""
    parser = commands.add_parser(
        "compile", help="build a pool's executables on a machine without its chips"
    )
    add_settings(parser)
    parser.add_argument("--model", required=True, metavar="NAME", help="a model of the settings")
    parser.add_argument(
        "--pool", metavar="NAME", help="a pool that serves it (default: the only one)"
    )
    parser.add_argument(
        "--topology",
        required=True,
        help="devices of one worker: chips, such as v6e:2x4, or virtual devices, such as cpu:8",
    )
    parser.add_argument(
        "--devices",
        type=devices,
        metavar="FIRST-LAST",
        help="the virtual devices that the worker uses (default: all)",
    )
    parser.add_argument(
        "--out",
        metavar="URL",
        help="store: folder, s3://… or gs://… (default: `executables` of the settings)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run `atelier compile`; return 0 if the store has all of the executables afterwards."""
    check_pools()
    from deploy.local.supervisor import plan
    from service.jobs.storage.errors import StoreError
    from service.jobs.storage.private_folders import be_private
    from service.settings.section import ConfigError
    from service.tracing.log_format import log_to_stderr
    from workers.slice.topology import PlanError

    be_private()
    settings = plan(settings_of(args))
    log_to_stderr(settings.log_level, settings.log_format)
    url = args.out or settings.executables
    if url is None:
        raise UsageError(
            "name a store for executables: --out URL, or `executables` in the settings"
        )
    pool, started = pool_of(settings, args.model, args.pool), time.monotonic()
    from workers.building.build import build  # importing JAX takes seconds, so after the checks
    from workers.building.target import Target

    try:
        target = Target.parse(args.topology, args.devices)
        programs = build(settings, pool, target, url, on_program)
    except PlanError as error:
        raise UsageError(str(error)) from None
    except StoreError as error:
        raise ConfigError(str(error)) from None
    return summed(programs, url, time.monotonic() - started)


def pool_of(settings: Settings, model: str, named: str | None) -> str:
    """Return the pool whose executables are built.

    Raises: UsageError: no such model or pool, or several pools.
    """
    if model not in settings.models:
        names = ", ".join(sorted(settings.models))
        raise UsageError(f"--model {model}: the settings have no such model; they have {names}")
    pools = [name for name, pool in settings.pools.items() if model in pool.models]
    if named is not None and named not in pools:
        others = ", ".join(pools) or "none"
        raise UsageError(f"--pool {named}: no such pool serves {model}; of those that do: {others}")
    if not pools:
        raise UsageError(f"--model {model}: no pool serves it by itself; name its base")
    if named is None and len(pools) > 1:
        raise UsageError(f"several pools serve {model}; choose by --pool: {', '.join(pools)}")
    return named or pools[0]


def on_program(program: ProgramOutcome) -> None:
    """Print the outcome of a compiled program."""
    size = f", {program.bytes / 2**20:.1f} MiB" if program.bytes else ""
    took = f" ({program.seconds:.1f} s{size})" if program.outcome == "built" else ""
    say(f"{program.name}: {program.outcome}{took}")


def summed(programs: Sequence[ProgramOutcome], url: str, took_s: float) -> int:
    """Print the totals of a build of executables; return the exit code."""
    built = [exe for exe in programs if exe.outcome == "built"]
    failed = [exe for exe in programs if not exe.is_in_store]
    print(
        f"{len(built)} executables built,"
        f" {len(programs) - len(built) - len(failed)} already stored, {len(failed)} failed;"
        f" {sum(exe.bytes for exe in built) / 2**20:.1f} MiB written to {url} "
        f"in {took_s:.0f} s"
    )
    return EXIT_FAILED if failed else 0
