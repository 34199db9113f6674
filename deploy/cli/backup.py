"""`atelier backup`: back up Redis to the object store, and restore it."""

from __future__ import annotations

import argparse

from deploy.cli.options import Commands, add_reason, add_settings, settings_of


def add(commands: Commands) -> None:
    """Add the command `atelier backup` and its options to the parser."""
    backup = commands.add_parser("backup", help="back the queue up to the store, and restore it")
    backup.set_defaults(run=_create)
    add_settings(backup)
    add_reason(backup)
    acts = backup.add_subparsers(metavar="act")
    options = {
        "argument_default": argparse.SUPPRESS
    }  # else defaults override options before the act
    shown = acts.add_parser("list", help="list backups: name, keys, bytes, server", **options)
    shown.set_defaults(run=_list)
    restore = acts.add_parser("restore", help="restore a backup into an empty Redis", **options)
    restore.add_argument("name", metavar="NAME", help="name shown by list")
    restore.set_defaults(run=_restore)
    for act in (shown, restore):
        add_settings(act)
    add_reason(restore, argparse.SUPPRESS)


def _create(args: argparse.Namespace) -> int:
    from deploy.admin import backups

    backups.create(settings_of(args), args.reason)
    return 0


def _list(args: argparse.Namespace) -> int:
    from deploy.admin import backups

    backups.show(settings_of(args))
    return 0


def _restore(args: argparse.Namespace) -> int:
    from deploy.admin import backups

    backups.restore(settings_of(args), args.name, args.reason)
    return 0
