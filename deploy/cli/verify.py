"""`atelier verify`: regenerate files or outputs by their recipe, and compare the pixels."""

from __future__ import annotations

import argparse
import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy.cli.options import Commands, count
from deploy.cli.remote import add_server, call_server
from deploy.exit_codes import UsageError, say

if TYPE_CHECKING:
    from service.client import Client

EXIT_DIFFERENT, EXIT_UNKNOWN = 1, 2
OF_A_JOB = re.compile(r"(?P<job>job_\w+)(/(?P<output>\d+))?", re.ASCII)
BEGINNINGS = (
    (0, b"\x89PNG", "image/png"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (8, b"WEBP", "image/webp"),
    (0, b"GIF8", "image/gif"),
    (4, b"ftyp", "video/mp4"),
    (0, b"\x1a\x45\xdf\xa3", "video/webm"),
)
"""Magic bytes of files: offset, bytes and media type."""
BUSY = (429, 503)
BUSY_S, BUSY_TRIES = 2.0, 60
"""Pause before retrying a busy server, and number of tries."""


def add(commands: Commands) -> None:
    """Add the command `atelier verify` and its options to the parser."""
    parser = commands.add_parser(
        "verify",
        help="generate files again from their recipes, and compare the pixels "
        "(exit codes: 0 identical, 1 different, 2 unknown)",
    )
    parser.add_argument(
        "target",
        nargs="+",
        metavar="FILE|JOB[/N]",
        help="PNG, JPEG, WebP, GIF or MP4; or a job's id, with an output's index (default: 0)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, one verdict per line")
    parser.add_argument(
        "--at-once", type=count, default=1, metavar="N", help="files at the same time (default: 1)"
    )
    add_server(parser)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    """Run `atelier verify`: return 1 if one target differs, else 2 if one cannot be decided."""
    return call_server(args, lambda client: _verify(client, args))


def _verify(client: Client, args: argparse.Namespace) -> int:
    began, verdicts = time.monotonic(), Counter[str]()
    for target, verdict in _verdicts(client, args.target, args.at_once):
        verdicts[verdict["verdict"]] += 1
        line = json.dumps({"target": target, **verdict}) if args.json else verdict["message"]
        print(line if args.json else f"{target}: {line}")
    if len(args.target) > 1:
        counts = ", ".join(f"{verdicts[name]} {name}" for name in ("identical", "different"))
        took_s = time.monotonic() - began
        say(f"atelier: {counts}, {verdicts['unknown']} unknown, in {took_s:.1f} s")
    if verdicts["different"]:
        return EXIT_DIFFERENT
    return EXIT_UNKNOWN if verdicts["unknown"] else 0


def _verdicts(
    client: Client, targets: Sequence[str], at_once: int
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each target to verify with its verdict, in order."""
    with ThreadPoolExecutor(at_once) as threads:
        try:
            yield from zip(targets, threads.map(partial(_verdict, client), targets), strict=True)
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise


def _verdict(client: Client, target: str) -> Mapping[str, Any]:
    """Return the verdict on a target; a refusal gives "unknown".

    Raises: UsageError: not a file; ServiceUnreachable.
    """
    from service.client import ApiError

    body, content_type = _body(target)
    for _ in range(BUSY_TRIES):
        try:
            return client.verify(body, content_type)
        except ApiError as problem:
            refused = {"verdict": "unknown", "message": str(problem)}
            if problem.status not in BUSY:
                break
        time.sleep(BUSY_S)
    return refused


def _body(target: str) -> tuple[bytes, str]:
    """Return the request body of a target to verify, and its media type. Raises: UsageError."""
    path = Path(target)
    if (named := OF_A_JOB.fullmatch(target)) and not path.exists():
        output = {"job": named["job"], "output": int(named["output"] or 0)}
        return json.dumps(output).encode(), "application/json"
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"can't read {target!r}: {error.strerror}") from None
    for offset, begin, content_type in BEGINNINGS:
        if data.startswith(begin, offset):
            return data, content_type
    raise UsageError(f"{target!r} is not a PNG, JPEG, WebP, GIF, MP4 or WebM file")
