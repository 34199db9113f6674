"""`atelier profile`: show where the time of a running pool's steps goes."""

from __future__ import annotations

import argparse
from pathlib import Path

from deploy.cli.options import Commands, add_settings, count, settings_of
from deploy.exit_codes import EXIT_FAILED, UsageError, say


def add(commands: Commands) -> None:
    """Add the command `atelier profile` and its options to the parser."""
    profile = commands.add_parser(
        "profile", help="profile a running pool's steps without stopping it"
    )
    add_settings(profile)
    profile.add_argument(
        "--pool",
        required=True,
        metavar="NAME",
        help="name of a pool in the settings, or of one worker",
    )
    for name, default, meaning in (
        ("steps", 10, "steps to record"),
        ("seconds", 30, "maximum recording time"),
        ("wait", 0, "seconds to wait for something to run"),
    ):
        text = f"{meaning} ({default})"
        kind = int if name == "wait" else count
        profile.add_argument(f"--{name}", type=kind, default=default, metavar="N", help=text)
    profile.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="folder for the trace, for TensorBoard or Perfetto",
    )
    profile.add_argument("--json", action="store_true", help="print JSON")
    profile.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run `atelier profile`: request a profile of a running pool, and print it."""
    from deploy.admin.profiling import Refused, profile
    from service.jobs.profiles import MAX_S, MAX_STEPS, ProfileRequest

    if args.steps > MAX_STEPS or args.seconds > MAX_S or args.wait < 0:
        raise UsageError(
            f"--steps goes up to {MAX_STEPS}, --seconds up to {MAX_S}, --wait from 0 on"
        )
    request = ProfileRequest(args.steps, args.seconds, args.wait, raw=args.output is not None)
    try:
        profile(settings_of(args), args.pool, request, args.output, as_json=args.json)
    except Refused as refusal:
        say(f"atelier: {refusal}")
        return EXIT_FAILED
    return 0
