"""`atelier serve`: run one front end. Does not import JAX."""

from __future__ import annotations

import argparse

from deploy.cli.options import Commands, add_address, add_settings, settings_of
from deploy.cli.requirements import lasting_objects


def add(commands: Commands) -> None:
    """Add the command `atelier serve` and its options to the parser."""
    serve = commands.add_parser("serve", help="run one front end")
    add_settings(serve)
    add_address(serve)
    serve.add_argument("--fd", type=int, help=argparse.SUPPRESS)  # an inherited listening socket
    serve.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run `atelier serve`: one front end, until a signal stops it."""
    with lasting_objects():
        from service.jobs.storage.private_folders import be_private
        from service.server import serve
        from service.tracing.log_format import log_to_stderr

    be_private()
    settings = settings_of(args)
    log_to_stderr(settings.log_level, settings.log_format, settings.tracing.gcp_project)
    return serve(settings, fd=args.fd)
