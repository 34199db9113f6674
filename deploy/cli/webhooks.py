"""`atelier webhooks`: create, list and revoke the secrets that sign a tenant's webhooks."""

from __future__ import annotations

import argparse

from deploy.cli.options import Commands, add_reason, add_settings, settings_of
from deploy.exit_codes import UsageError, say


def add(commands: Commands) -> None:
    """Add the command `atelier webhooks` and its options to the parser."""
    webhooks = commands.add_parser(
        "webhooks", help="create, list and revoke secrets that sign webhooks"
    )
    acts = webhooks.add_subparsers(required=True, metavar="act")
    create = acts.add_parser(
        "create", help="create a secret and print it once; an older one stays valid"
    )
    create.add_argument(
        "--tenant", required=True, metavar="NAME", help="tenant whose messages it signs"
    )
    create.set_defaults(run=_create)
    shown = acts.add_parser("list", help="list secrets: id, tenant, time")
    shown.set_defaults(run=_list)
    revoke = acts.add_parser("revoke", help="revoke a secret")
    revoke.add_argument("id", metavar="ID", help="id shown by list")
    revoke.set_defaults(run=_revoke)
    for act in (create, shown, revoke):
        add_settings(act)
    for act in (create, revoke):
        add_reason(act)


def _create(args: argparse.Namespace) -> int:
    from deploy.admin import webhook_secrets

    try:
        webhook_secrets.create(settings_of(args), args.tenant, args.reason)
    except ValueError as error:
        raise UsageError(f"--tenant: {error}") from None
    return 0


def _list(args: argparse.Namespace) -> int:
    from deploy.admin import webhook_secrets

    webhook_secrets.show(settings_of(args))
    return 0


def _revoke(args: argparse.Namespace) -> int:
    from deploy.admin import webhook_secrets

    webhook_secrets.revoke(settings_of(args), args.id, args.reason)
    say(f"revoked {args.id}")
    return 0
