"""`atelier worker`: run one worker of a pool, or one process of a worker on several hosts."""

from __future__ import annotations

import argparse

from deploy.cli.options import Commands, add_settings, count, devices, settings_of, without_none
from deploy.cli.requirements import check_pools, lasting_objects


def add(commands: Commands) -> None:
    """Add the command `atelier worker` and its options to the parser."""
    worker = commands.add_parser("worker", help="run one pool")
    add_settings(worker)
    worker.add_argument(
        "--pool", required=True, metavar="NAME", help="name of a pool in the settings"
    )
    worker.add_argument(
        "--devices",
        type=devices,
        metavar="FIRST-LAST",
        help="devices of this machine to use (default: all)",
    )
    worker.add_argument(
        "--explain", action="store_true", help="print the layout and memory plan, then exit"
    )
    worker.add_argument(
        "--coordinator",
        metavar="HOST:PORT",
        help="address of the first process, for a slice of several hosts",
    )
    worker.add_argument(
        "--num-processes",
        type=count,
        metavar="N",
        help="number of processes in the slice (default: 1)",
    )
    worker.add_argument("--process-id", type=int, metavar="I", help="index of this process, from 0")
    worker.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run `atelier worker`: one worker, until a signal stops it."""
    check_pools()
    from workers.multihost.exits import exit_on_sigterm

    exit_on_sigterm()
    with lasting_objects():
        from service.jobs.storage.private_folders import be_private
        from service.tracing.log_context import set_process_fields
        from service.tracing.log_format import log_to_stderr
        from workers.pool.process import run_pool

    be_private()
    hosts = without_none(
        coordinator=args.coordinator, count=args.num_processes, index=args.process_id
    )
    settings = settings_of(args, pools=hosts and {args.pool: {"hosts": hosts}})
    log_to_stderr(settings.log_level, settings.log_format, settings.tracing.gcp_project)
    set_process_fields(pool=args.pool)
    if args.explain:
        from workers.loading.explain import explain

        print(explain(settings, args.pool, args.devices))
        return 0
    return run_pool(settings, args.pool, args.devices)
