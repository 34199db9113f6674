"""`atelier loras`: list, upload and delete LoRA adapters of a running server."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy.cli.options import Commands, without_none
from deploy.cli.remote import add_server, call_server
from deploy.exit_codes import UsageError, say

if TYPE_CHECKING:
    from service.client import Client

EXPERTS = ("high", "low")


def add(commands: Commands) -> None:
    """Add the command `atelier loras` and its options to the parser."""
    loras = commands.add_parser(
        "loras", help="list, upload and delete adapters (LoRA) and embeddings"
    )
    acts = loras.add_subparsers(required=True, metavar="act")
    listed = _add_act(acts, "list", "list adapters: name, model, rank, trigger", _list)
    listed.add_argument("--json", action="store_true", help="print JSON, one adapter per line")
    added = _add_act(acts, "add", "upload a safetensors file for the key's tenant", _upload)
    added.add_argument("name", metavar="NAME", help="name of the adapter in requests")
    added.add_argument("file", type=Path, metavar="FILE", help="safetensors file")
    added.add_argument(
        "--model", metavar="NAME", help="model that it is for (default: the only one)"
    )
    added.add_argument("--trigger", metavar="TEXT", help="words to include in a prompt")
    added.add_argument("--preview", type=Path, metavar="FILE", help="image made with it")
    added.add_argument("--expert", choices=EXPERTS, help="expert of Wan 2.2 (default: high)")
    removed = _add_act(acts, "remove", "delete adapters that the tenant has uploaded", _remove)
    removed.add_argument("name", nargs="+", metavar="NAME", help="name shown by list")


def _add_act(
    acts: Commands, name: str, about: str, act: Callable[[Client, argparse.Namespace], int]
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = acts.add_parser(name, help=about)
    add_server(parser)
    parser.set_defaults(run=lambda args: call_server(args, lambda client: act(client, args)))
    return parser


def _list(client: Client, args: argparse.Namespace) -> int:
    for lora in client.loras():
        print(json.dumps(lora) if args.json else _line(lora))
    return 0


def _line(lora: Mapping[str, Any]) -> str:
    detail = lora["trigger"] if lora["ready"] else f"cannot be used: {lora['error']}"
    size = f"{lora['vectors']} vectors" if lora["vectors"] else f"rank {lora['rank']}"
    return f"{lora['name']:<24}  {lora['model']:<16}  {size:<10}  {detail}".rstrip()


def _upload(client: Client, args: argparse.Namespace) -> int:
    from models.adapters.files.adapter import AdapterError
    from models.adapters.files.peft_folder import with_config

    texts = without_none(name=args.name, model=args.model, trigger=args.trigger, expert=args.expert)
    try:
        with with_config(args.file) as file:
            lora = client.upload_lora(texts, **without_none(file=file, preview=args.preview))
    except OSError as error:
        raise UsageError(f"can't read {str(error.filename)!r}: {error.strerror}") from None
    except AdapterError as error:
        raise UsageError(str(error)) from None
    kind = "embedding" if lora["vectors"] else f"rank {lora['rank']}"
    say(f"uploaded {lora['name']}: {kind}, for {lora['model']}")
    return 0


def _remove(client: Client, args: argparse.Namespace) -> int:
    for name in args.name:
        client.delete_lora(name)
        say(f"deleted {name}")
    return 0
