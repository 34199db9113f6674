"""`atelier up`: run the whole system on this machine."""

from __future__ import annotations

import argparse
from typing import Any

from deploy.cli.options import (
    DTYPES,
    Commands,
    add_address,
    add_settings,
    count,
    make_state_folder,
    mesh,
    settings_of,
)
from deploy.cli.requirements import check_pools
from deploy.exit_codes import UsageError


def add(commands: Commands) -> None:
    """Add the command `atelier up` and its options to the parser."""
    up = commands.add_parser("up", help="run the whole system on this machine")
    add_settings(up)
    add_address(up)
    up.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="NAME=SOURCE",
        help="folder in diffusers' layout or hub id; repeatable (default: the demo models)",
    )
    up.add_argument(
        "--mesh",
        type=mesh,
        metavar="AXIS=N,…",
        help="mesh axes of each pool's slice, such as cfg=2,context=-1 (default: auto)",
    )
    up.add_argument(
        "--pools", type=count, metavar="N", help="number of pools per model (default: 1)"
    )
    up.add_argument("--dtype", choices=DTYPES, help="data type of the weights")
    up.add_argument(
        "--host-devices", type=count, metavar="N", help="number of virtual CPU devices per pool"
    )
    up.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run `atelier up`: Redis, front end and workers, until a signal stops them."""
    check_pools()
    from deploy.local.supervisor import plan, up
    from service.jobs.storage.private_folders import be_private

    be_private()
    settings = settings_of(args, models=_models(args.model))
    make_state_folder(settings.state_dir)
    planned = plan(settings, pools=args.pools, dtype=args.dtype, mesh=args.mesh)
    return up(planned, host_devices=args.host_devices)


def _models(pairs: list[str]) -> dict[str, dict[str, Any]]:
    """Convert `--model NAME=SOURCE …` to the settings' `models`."""
    models = {}
    for pair in pairs:
        name, equals, source = pair.partition("=")
        if not (name and equals and source):
            raise UsageError(f"--model requires NAME=SOURCE, not {pair!r}")
        models[name] = {"source": source}
    return models
