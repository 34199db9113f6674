"""Compares this engine with diffusers and torch.compile on one machine, in alternating turns.

    python -m lab.bench.against flux-dev sdxl [--turns 3] [--json FILE]

An NVIDIA GPU runs full-size networks in bfloat16. Without a GPU, or with --tiny, the demo models'
networks run in float32, which tests the program but measures nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from deploy.bench.engine.case import EngineCase, configs_of
from deploy.cli.options import count
from deploy.cli.output_files import check_writable
from deploy.exit_codes import UsageError
from lab.bench.against.compare import (
    Json,
    NotMeasured,
    NotTheSame,
    Sides,
    compared,
    first_from,
    run_atelier,
    run_diffusers,
)
from lab.bench.against.diffusers_turn import AUTO, BACKENDS, MODES, USUAL
from lab.bench.against.table import show
from models import published
from models.checkpoint.folder import CheckpointError

MODELS = ("flux-dev", "sdxl", "wan2.1-1.3b", "wan2.1-14b")
SIZES = ("width", "height", "num-frames", "steps", "guidance", "repeats")


def main(words: Sequence[str] | None = None) -> int:
    """Compare the models; returns 1 if any model could not be compared. The others still are."""
    args = parsed(words)
    check_writable(args.json)
    args.tiny = args.tiny or not torch.cuda.is_available()
    results: list[Json] = []
    failed: list[str] = []
    for model in args.models:
        latest: Json | None = None
        try:
            for latest in turns(args, model):
                write(args.json, [*results, latest])
        except (CheckpointError, NotMeasured, NotTheSame) as error:
            failed.append(f"{model}: {error}")
        results += [latest] if latest else []
    show(results, Console())
    for line in failed:
        print(line, file=sys.stderr)
    return 1 if failed else 0


def turns(args: argparse.Namespace, model: str) -> Iterator[Json]:
    """Yield all results so far after each turn.

    Raises: CheckpointError: no such model; NotMeasured, NotTheSame: as `compared`.
    """
    with tempfile.TemporaryDirectory() as made, configs_of(engine_case(args, model)) as folder:
        for result in compared(model, sides(args, model, folder, Path(made)), args.turns):
            yield result.as_json()


def parsed(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m lab.bench.against", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "models", nargs="*", default=MODELS, metavar="MODEL", help=", ".join(published.CHECKPOINTS)
    )
    parser.add_argument("--turns", type=count, default=3, help="of each side (3)")
    parser.add_argument("--tiny", action="store_true", help="the demo models' networks")
    for name in SIZES:
        parser.add_argument(f"--{name}", metavar="N", help="as atelier bench engine has it")
    parser.add_argument("--attention", choices=(AUTO, USUAL, *BACKENDS), default=AUTO)
    parser.add_argument("--mode", choices=MODES, default="default", help="of torch.compile")
    parser.add_argument("--eager", action="store_true", help="theirs without torch.compile")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every repeat of every turn")
    parser.add_argument(
        "--batching", choices=("exact", "fast"), default="exact", help="of ours, as models have it"
    )
    parser.add_argument(
        "--compile-cache", type=Path, metavar="DIR", help="of ours, for another run (none)"
    )
    parser.add_argument(
        "--ours", type=Path, metavar="FILE",
        help="report of atelier bench engine, for our first turn, if the file exists",
    )  # fmt: skip
    return parser.parse_args(words)


def engine_case(args: argparse.Namespace, model: str) -> EngineCase:
    return EngineCase(model, {}, tiny=args.tiny)


def sides(args: argparse.Namespace, model: str, folder: Path, made: Path) -> Sides:
    """Return the functions that run one turn of each side. Args: folder: of the configs; made: for
    files of both sides."""
    sizes = [
        word
        for name in SIZES
        if (value := getattr(args, name.replace("-", "_"))) is not None
        for word in (f"--{name}", value)
    ]
    dtype = ["--dtype", "float32", "--tiny"] if args.tiny else ["--dtype", "bfloat16"]
    # Use one device, because diffusers also has only one.
    compiled = str(args.compile_cache or made / "compiled")
    our_options = [*sizes, *dtype, "--devices", "0", "--batching", args.batching]
    our_options += ["--compile-cache", compiled]
    their_options = ["--mode", args.mode, "--attention", args.attention]
    their_options += ["--repeats", args.repeats] if args.repeats else []
    their_options += ["--eager"] if args.eager else []
    return Sides(
        first_from(args.ours, partial(run_atelier, model, our_options, made / "ours.json")),
        partial(run_diffusers, folder, their_options, made / "theirs.json"),
    )


def write(file: Path | None, results: Sequence[Json]) -> None:
    if file is not None:
        file.write_text(json.dumps({"results": results}, indent=1))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UsageError as error:
        sys.exit(str(error))
