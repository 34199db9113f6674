"""`atelier generate`: generate an image or video on a running server, with a progress bar."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy.cli.options import Commands, count
from deploy.cli.remote import add_server, call_server, finish, write_outputs
from deploy.cli.request_options import add_fields, body_of
from deploy.exit_codes import UsageError, say

if TYPE_CHECKING:
    from service.client import Client


def add(commands: Commands) -> None:
    """Add the command `atelier generate` and its options to the parser."""
    generate = commands.add_parser(
        "generate", help="generate an image or video on a running server", late=add_fields
    )
    generate.add_argument("prompt", help="text prompt")
    generate.add_argument(
        "-o",
        "--output",
        type=Path,
        help="file to write (.png, .jpg, .webp, .mp4, .webm, .gif), or a folder for PNG files",
    )
    generate.add_argument(
        "--audition",
        type=count,
        metavar="N",
        help="generate small previews of N images, after --stop-at-step steps or a quarter of them;"
        " `atelier jobs continue` finishes those that you choose",
    )
    add_server(generate)
    generate.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run `atelier generate`: submit the request, wait for its end, and write its outputs."""
    body = body_of(args)

    def make(client: Client) -> int:
        if args.audition:
            body.update(_audition(client, body, args.audition))
        client.submit(body)
        return finish(client, lambda job: write_outputs(client, job, args.output))

    return call_server(args, make, _cancel)


def _audition(client: Client, body: Mapping[str, Any], images: int) -> dict[str, int]:
    """Return the fields that make a request an audition of `images` images."""
    steps = body.get("num_inference_steps") or _default_steps(client, body.get("model"))
    steps = int(steps * body.get("strength", 1.0))
    return {"num_images": images, "stop_at_step": body.get("stop_at_step") or max(1, steps // 4)}


def _default_steps(client: Client, name: str | None) -> int:
    """Return the default steps of a model, or of the only model of the server.

    Raises: UsageError: unknown.
    """
    models = [model for model in client.models() if name in (None, model["name"])]
    if len(models) == 1 and (steps := models[0]["defaults"].get("num_inference_steps")):
        return int(steps)
    raise UsageError("--audition: set --steps and --stop-at-step, where the images stop")


def _cancel(client: Client) -> None:
    if client.job_id:
        client.cancel()
    say("atelier: canceled")
