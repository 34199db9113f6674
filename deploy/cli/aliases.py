"""`atelier aliases`: set, list, remove, export and import aliases of model versions."""

from __future__ import annotations

import argparse

from deploy.cli.options import Commands, add_reason, add_settings, settings_of, text_of
from deploy.exit_codes import UsageError, say

OPTIONS = {
    "shadow": (
        "VERSION",
        "run a share of the requests on this version, too, and compare the images",
    ),
    "shadow_share": ("SHARE", "share of the requests that the shadow runs (default: 0.01)"),
    "baseline": ("VERSION", "version to return to when the others perform worse"),
    "max_failures": ("SHARE", "share of failed jobs beyond the baseline's (default: 0.05)"),
    "max_slowdown": ("FACTOR", "median latency over the baseline's (default: 1.5)"),
    "min_jobs": ("N", "jobs of a version before it is judged (default: 20)"),
    "window_s": ("S", "period that is judged, in seconds (default: 600)"),
}


def add(commands: Commands) -> None:
    """Add the command `atelier aliases` and its options to the parser."""
    aliases = commands.add_parser(
        "aliases", help="set, list, export and import aliases of a model's versions"
    )
    acts = aliases.add_subparsers(required=True, metavar="act")
    shown = acts.add_parser("list", help="list aliases: versions, weights, pools, queues")
    shown.set_defaults(run=_list)
    change = acts.add_parser("set", help="change an alias, without a restart")
    change.add_argument("name", metavar="NAME", help="alias, as requests name it")
    change.add_argument(
        "weights",
        nargs="*",
        type=_weight,
        metavar="VERSION=WEIGHT",
        help="all its versions, such as @r1=90 @r2=10 (@r1 is short for NAME@r1); 0: standby",
    )
    for name, (metavar, about) in OPTIONS.items():
        flag = "--" + name.replace("_", "-")
        change.add_argument(flag, metavar=metavar, help=f"{about}; none: its default")
    change.set_defaults(run=_set)
    remove = acts.add_parser("remove", help="remove an alias; keep its jobs")
    remove.add_argument("name", metavar="NAME", help="alias")
    remove.set_defaults(run=_remove)
    export = acts.add_parser("export", help="print all aliases, one JSON object per line")
    export.set_defaults(run=_export)
    taken = acts.add_parser("import", help="write exported aliases to Redis")
    taken.add_argument("file", metavar="FILE", help="exported aliases; -: standard input")
    taken.set_defaults(run=_import)
    for act in (shown, change, remove, export, taken):
        add_settings(act)
    for act in (change, remove, taken):
        add_reason(act)


def _weight(text: str) -> tuple[str, str]:
    version, equals, weight = text.rpartition("=")
    if not (version and equals and weight):
        raise argparse.ArgumentTypeError(f"must be VERSION=WEIGHT, not {text!r}")
    return version, weight


def _list(args: argparse.Namespace) -> int:
    from deploy.admin import aliases

    aliases.show(settings_of(args))
    return 0


def _set(args: argparse.Namespace) -> int:
    from deploy.admin import aliases

    options = {name: value for name in OPTIONS if (value := getattr(args, name)) is not None}
    if not args.weights and not options:
        raise UsageError("versions with weights, or options, are required")
    try:
        aliases.change(settings_of(args), args.name, dict(args.weights), options, args.reason)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return 0


def _remove(args: argparse.Namespace) -> int:
    from deploy.admin import aliases

    aliases.remove(settings_of(args), args.name, args.reason)
    say(f"removed {args.name}")
    return 0


def _export(args: argparse.Namespace) -> int:
    from deploy.admin import aliases

    aliases.export(settings_of(args))
    return 0


def _import(args: argparse.Namespace) -> int:
    from deploy.admin import aliases

    text = text_of(args.file)
    try:
        aliases.import_records(settings_of(args), text, args.reason)
    except ValueError as error:
        raise UsageError(f"{args.file}: {error}") from None
    return 0
