"""`atelier keys`: make, list and revoke API keys."""

from __future__ import annotations

import argparse

from deploy.cli.options import Commands, add_settings, settings_of
from deploy.exit_codes import EXIT_FAILED, UsageError, say

MAX_LABEL_CHARS = 80


def add(commands: Commands) -> None:
    """Add `atelier keys`."""
    api_keys = commands.add_parser("keys", help="create, list and revoke API keys")
    acts = api_keys.add_subparsers(required=True, metavar="act")
    create = acts.add_parser("create", help="create a key and print it once")
    create.add_argument(
        "--tenant", required=True, metavar="NAME", help="tenant that the key acts for"
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
    for act in (create, shown, revoke):
        add_settings(act)


def _label(text: str) -> str:
    """Check text that stands on one line of a table and does nothing to a terminal."""
    if len(text) > MAX_LABEL_CHARS or not text.isprintable():
        raise argparse.ArgumentTypeError(f"wants up to {MAX_LABEL_CHARS} printable characters")
    return text


def _create(args: argparse.Namespace) -> int:
    from deploy.admin import api_keys

    try:
        api_keys.create(settings_of(args), args.tenant, args.name)
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
    if not api_keys.revoke(settings_of(args), key_id):
        say(f"atelier: there is no key {key_id!r}; `atelier keys list` shows all")
        return EXIT_FAILED
    say(f"revoked {key_id}")
    return 0
