"""`atelier bench`: measure speed. Each sub-command is a module with `add_arguments` and `run`."""

from __future__ import annotations

from importlib import import_module

from deploy.cli.options import Commands

BENCHES = {
    "engine": "full-size networks with random weights, on this machine's devices",
    "compare": "the native and the diffusers worker of one checkpoint, in alternation",
    "serve": "a running server under load that does not wait for its answers",
}
"""Sub-command → its help; `deploy.cli.bench_<name>` implements it."""


def add(commands: Commands) -> None:
    """Add the command `atelier bench` and its options to the parser."""
    bench = commands.add_parser("bench", help="measure the speed of the engine or of a server")
    kinds = bench.add_subparsers(required=True, metavar="what")
    for name, about in BENCHES.items():
        module = import_module(f".bench_{name}", __package__)
        parser = kinds.add_parser(name, help=about, description=module.__doc__)
        module.add_arguments(parser)
        parser.set_defaults(run=module.run)
