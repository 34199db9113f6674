"""`atelier tenants`: set, list, remove, erase, export and import tenants."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from deploy.cli.options import Commands, add_reason, add_settings, settings_of, text_of
from deploy.exit_codes import UsageError, say


def add(commands: Commands) -> None:
    """Add the command `atelier tenants` and its options to the parser."""
    tenants = commands.add_parser(
        "tenants", help="set, list, export and import shares and quotas of tenants"
    )
    acts = tenants.add_subparsers(required=True, metavar="act")
    shown = acts.add_parser("list", help="list tenants: name, source, settings")
    shown.set_defaults(run=_list)
    change = acts.add_parser("set", help="change settings of a tenant, without a restart")
    change.add_argument("name", metavar="NAME", help="tenant; '*': all tenants without a record")
    change.add_argument(
        "settings",
        nargs="+",
        type=_setting,
        metavar="KEY=VALUE",
        help="setting as in [tenants.NAME], such as max_queued=100; none: its default",
    )
    change.set_defaults(run=_set)
    remove = acts.add_parser("remove", help="remove a tenant's record")
    remove.add_argument("name", metavar="NAME", help="tenant")
    remove.set_defaults(run=_remove)
    erase = acts.add_parser(
        "erase", help="delete a tenant's keys, jobs, batches, files, adapters, webhooks and record"
    )
    erase.add_argument("name", metavar="NAME", help="tenant")
    erase.add_argument("--yes", action="store_true", help="confirm: this cannot be undone")
    erase.set_defaults(run=_erase)
    export = acts.add_parser("export", help="print all records as TOML")
    export.set_defaults(run=_export)
    taken = acts.add_parser("import", help="write the tenants of a settings file to Redis")
    taken.add_argument("file", metavar="FILE", help="TOML with [tenants.NAME]; -: standard input")
    taken.add_argument(
        "--replace", action="store_true", help="remove tenants that the file does not name"
    )
    taken.set_defaults(run=_import)
    for act in (shown, change, remove, erase, export, taken):
        add_settings(act)
    for act in (change, remove, erase, taken):
        add_reason(act)


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals and value):
        raise argparse.ArgumentTypeError(f"must be KEY=VALUE, not {text!r}")
    return key, value


def _list(args: argparse.Namespace) -> int:
    from deploy.admin import tenants

    tenants.show(settings_of(args))
    return 0


def _set(args: argparse.Namespace) -> int:
    from deploy.admin import tenants

    settings, changes = settings_of(args), dict(args.settings)
    return _used(lambda: tenants.change(settings, args.name, changes, args.reason))


def _remove(args: argparse.Namespace) -> int:
    from deploy.admin import tenants

    tenants.remove(settings_of(args), args.name, args.reason)
    say(f"removed {args.name}")
    return 0


def _erase(args: argparse.Namespace) -> int:
    from deploy.admin import erasure

    if not args.yes:
        raise UsageError("--yes: confirm the deletion; only a backup can restore the data")
    return _used(lambda: erasure.erase(settings_of(args), args.name, args.reason))


def _export(args: argparse.Namespace) -> int:
    from deploy.admin import tenants

    tenants.export(settings_of(args))
    return 0


def _import(args: argparse.Namespace) -> int:
    from deploy.admin import tenants

    text = text_of(args.file)
    return _used(lambda: tenants.import_records(settings_of(args), text, args.replace, args.reason))


def _used(act: Callable[[], None]) -> int:
    """Run an action of `atelier tenants`; turn ValueError into UsageError."""
    try:
        act()
    except ValueError as error:
        raise UsageError(str(error)) from None
    return 0
