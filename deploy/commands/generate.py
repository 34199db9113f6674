"""`atelier generate`: a picture or clip from a running server, with a progress bar."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy.commands.exits import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_UNREACHABLE,
    UsageError,
    say,
)
from deploy.commands.files import path_of
from deploy.commands.options import Commands
from deploy.commands.progress import show
from deploy.commands.request import add_fields, body_of

if TYPE_CHECKING:
    from service.client import Client


def add(commands: Commands) -> None:
    generate = commands.add_parser("generate", help="make a picture or clip on a running server")
    generate.add_argument("prompt")
    generate.add_argument(
        "-o",
        "--output",
        type=Path,
        help="file to write: .png, .jpg, .webp, .mp4, .webm, .gif; or a folder, for PNG files",
    )
    generate.add_argument("--server", default="http://127.0.0.1:8000", metavar="URL")
    generate.add_argument(
        "--key", metavar="KEY", help="an API key ($ATELIER_API_KEY, which other users can't see)"
    )
    add_fields(generate)
    generate.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from service.client import Client, Problem, Unreachable
    from service.settings import KEY_VARIABLE

    body = body_of(args)
    key = (args.key or os.environ.get(KEY_VARIABLE) or "").strip()
    if not (key.isascii() and key.isprintable()):
        raise UsageError(f"--key, {KEY_VARIABLE}: there are signs in it that no API key has")
    with Client(args.server, key) as client:
        try:
            return _make(client, body, args.output)
        except KeyboardInterrupt:
            return _cancel(client)
        except Problem as problem:
            say(f"atelier: {problem}")
            return EXIT_FAILED
        except Unreachable as error:
            say(f"atelier: {error}")
            return EXIT_UNREACHABLE


def _make(client: Client, body: Mapping[str, Any], output: Path | None) -> int:
    client.submit(body)
    show(client.follow())
    job = client.job()
    if job["state"] != "succeeded":
        say(f"atelier: {_reason(job)}")
        return EXIT_FAILED
    for item in job["outputs"]:
        path = path_of(output, item, len(job["outputs"]))
        path.write_bytes(client.output(item["url"]))
        print(path)
    return 0


def _reason(job: Mapping[str, Any]) -> str:
    said = {"canceled": "the job was canceled", "expired": "the job's deadline passed"}
    error = job.get("error") or {}
    return said.get(job["state"]) or error.get("message") or "the job failed"


def _cancel(client: Client) -> int:
    if client.job_id:
        client.cancel()
    say("atelier: canceled")
    return EXIT_INTERRUPTED
