"""`atelier webhooks`: make, list and revoke the secrets that sign a tenant's webhooks."""

from __future__ import annotations

import argparse

from deploy.cli.options import Commands, add_settings, settings_of
from deploy.exit_codes import EXIT_FAILED, UsageError, say


def add(commands: Commands) -> None:
    """Add `atelier webhooks`."""
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


def _create(args: argparse.Namespace) -> int:
    from deploy.admin import webhook_secrets

    try:
        webhook_secrets.create(settings_of(args), args.tenant)
    except ValueError as error:
        raise UsageError(f"--tenant: {error}") from None
    return 0


def _list(args: argparse.Namespace) -> int:
    from deploy.admin import webhook_secrets

    webhook_secrets.show(settings_of(args))
    return 0


def _revoke(args: argparse.Namespace) -> int:
    from deploy.admin import webhook_secrets

    if not webhook_secrets.revoke(settings_of(args), args.id):
        say(f"atelier: there is no secret {args.id!r}; `atelier webhooks list` shows all")
        return EXIT_FAILED
    say(f"revoked {args.id}")
    return 0
