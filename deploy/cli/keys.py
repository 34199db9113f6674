"""`atelier keys`: create, list, revoke, export and import API keys."""

from __future__ import annotations

import argparse

from deploy.cli.options import Commands, add_reason, add_settings, settings_of, text_of
from deploy.exit_codes import UsageError, say

MAX_LABEL_CHARS = 80


def add(commands: Commands) -> None:
    """Add the command `atelier keys` and its options to the parser."""
    api_keys = commands.add_parser("keys", help="create, list, revoke, export and import API keys")
    acts = api_keys.add_subparsers(required=True, metavar="act")
    create = acts.add_parser("create", help="create a key and print it once")
    role = create.add_mutually_exclusive_group(required=True)
    role.add_argument("--tenant", metavar="NAME", help="tenant that the key acts for")
    role.add_argument(
        "--operator", action="store_true", help="for /v1/admin; --name identifies the operator"
    )
    create.add_argument(
        "--name", type=_label, default="", metavar="TEXT", help="label shown in the list"
    )
    create.set_defaults(run=_create)
    shown = acts.add_parser("list", help="list keys: id, tenant, time, name")
    shown.set_defaults(run=_list)
    revoke = acts.add_parser("revoke", help="revoke a key")
    revoke.add_argument("id", metavar="ID", help="id shown by list")
    revoke.set_defaults(run=_revoke)
    export = acts.add_parser("export", help="print all keys with their digests, no secrets")
    export.set_defaults(run=_export)
    taken = acts.add_parser("import", help="add keys that export has printed")
    taken.add_argument("file", metavar="FILE", help="file of exported keys; -: standard input")
    taken.set_defaults(run=_import)
    for act in (create, shown, revoke, export, taken):
        add_settings(act)
    for act in (create, revoke, taken):
        add_reason(act)


def _label(text: str) -> str:
    """Validate a key's label: short, printable, on one line."""
    if len(text) > MAX_LABEL_CHARS or not text.isprintable():
        raise argparse.ArgumentTypeError(f"must be at most {MAX_LABEL_CHARS} printable characters")
    return text


def _create(args: argparse.Namespace) -> int:
    from deploy.admin import api_keys

    if args.operator:
        if not args.name:
            raise UsageError("--operator needs a --name: the audit log records it")
        api_keys.create_operator(settings_of(args), args.name, args.reason)
        return 0
    try:
        api_keys.create(settings_of(args), args.tenant, args.name, args.reason)
    except ValueError as error:
        raise UsageError(f"--tenant: {error}") from None
    return 0


def _list(args: argparse.Namespace) -> int:
    from deploy.admin import api_keys

    api_keys.show(settings_of(args))
    return 0


def _revoke(args: argparse.Namespace) -> int:
    from deploy.admin import api_keys
    from service.auth.api_keys import id_of

    key_id = id_of(args.id)
    api_keys.revoke(settings_of(args), key_id, args.reason)
    say(f"revoked {key_id}")
    return 0


def _export(args: argparse.Namespace) -> int:
    from deploy.admin import api_keys

    api_keys.export(settings_of(args))
    return 0


def _import(args: argparse.Namespace) -> int:
    from deploy.admin import api_keys

    text = text_of(args.file)
    try:
        api_keys.import_records(settings_of(args), text, args.reason)
    except ValueError as error:
        raise UsageError(f"{args.file}: {error}") from None
    return 0
