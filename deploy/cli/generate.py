"""`atelier generate`: an image or video from a running server, with a progress bar."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.cli.options import Commands
from deploy.cli.remote import add_server, ask, finish, write_outputs
from deploy.cli.request_options import add_fields, body_of
from deploy.exit_codes import say

if TYPE_CHECKING:
    from service.client import Client


def add(commands: Commands) -> None:
    """Add `atelier generate`."""
    generate = commands.add_parser(
        "generate", help="generate an image or video on a running server", late=add_fields
    )
    generate.add_argument("prompt", help="what the image shows")
    generate.add_argument(
        "-o",
        "--output",
        type=Path,
        help="file to write (.png, .jpg, .webp, .mp4, .webm, .gif), or a folder for PNG files",
    )
    add_server(generate)
    generate.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Submit the request, wait for its end and write its outputs."""
    body = body_of(args)

    def make(client: Client) -> int:
        client.submit(body)
        return finish(client, lambda job: write_outputs(client, job, args.output))

    return ask(args, make, _cancel)


def _cancel(client: Client) -> None:
    if client.job_id:
        client.cancel()
    say("atelier: canceled")
