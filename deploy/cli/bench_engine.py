"""`atelier bench engine`: time full-size networks with random weights on this machine.

It reports steps, text encoding, the VAE, whole requests and memory. It also reports MFU, relative
to a matrix product measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from deploy.cli.options import (
    DTYPES,
    EIGHT_BIT_PRODUCTS,
    count,
    devices,
    mesh,
    not_negative,
    without_none,
)
from deploy.cli.output_files import HERE, check_writable
from deploy.cli.requirements import check_pools
from deploy.exit_codes import EXIT_FAILED, say
from deploy.local.processes import ATELIER, importing_atelier

REQUEST = ("width", "height", "num-frames", "steps")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `atelier bench engine`."""
    parser.add_argument(
        "--model",
        required=True,
        nargs="+",
        metavar="NAME-or-SOURCE",
        help="flux-dev, sdxl, wan2.1-14b …, a folder of configs, or a hub id; a process each",
    )
    parser.add_argument(
        "--tiny", action="store_true", help="use the demo model of the same family instead"
    )
    for name in REQUEST:
        parser.add_argument(f"--{name}", type=count, metavar="N", help="default: the model's")
    parser.add_argument(
        "--guidance", type=not_negative, metavar="X", help="guidance scale; 1: no guidance"
    )
    parser.add_argument(
        "--batch",
        type=count,
        default=1,
        metavar="N",
        help="number of requests at once (default: 1)",
    )
    parser.add_argument(
        "--exact-rows", type=count, metavar="N", help="rows per compiled program (default: --batch)"
    )
    parser.add_argument(
        "--batching",
        choices=("exact", "fast"),
        default="exact",
        help="fast enables autotuning on GPUs (default: exact)",
    )
    parser.add_argument(
        "--lora-rank",
        type=count,
        metavar="N",
        help="alternate with rounds in which each request has a LoRA adapter of that rank",
    )
    _add_machine(parser)
    parser.add_argument(
        "--repeats", type=count, default=5, metavar="N", help="number of repeats (default: 5)"
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write every repeat's times as JSON; -: standard output",
    )
    parser.add_argument(
        "--compile-cache", type=Path, metavar="DIR", help="folder to keep compiled programs in"
    )


def _add_machine(parser: argparse.ArgumentParser) -> None:
    """Add the options of devices, layout and precision."""
    parser.add_argument(
        "--devices",
        type=devices,
        metavar="FIRST-LAST",
        help="devices of this machine to use (default: all)",
    )
    parser.add_argument(
        "--mesh", type=mesh, default="auto", metavar="AXIS=N,…", help="mesh axes (default: auto)"
    )
    parser.add_argument(
        "--dtype", choices=DTYPES, default="bfloat16", help="data type of the weights"
    )
    parser.add_argument(
        "--activation-dtype",
        choices=DTYPES,
        help="data type of activations (default: as the weights)",
    )
    parser.add_argument(
        "--eight-bit",
        choices=EIGHT_BIT_PRODUCTS,
        help="8-bit weights, with exact (w8a16) or rounded (w8a8) activations",
    )
    parser.add_argument(
        "--vae-tiling",
        action=argparse.BooleanOptionalAction,
        help="decode in tiles (default: only if memory is short)",
    )


def run(args: argparse.Namespace) -> int:
    """Run `atelier bench engine`, which measures each model in a separate process.

    Raises: UsageError, CheckpointError, ConfigError.
    """
    check_writable(args.json)
    check_pools()
    from rich.console import Console

    from deploy.bench.engine.table import show

    for report in _reports(args):  # write early, so that an interruption loses little
        if args.json not in (None, HERE):
            args.json.write_text(json.dumps(report, indent=1))
    if args.json == HERE:
        print(json.dumps(report, indent=1))
    else:
        show(report, Console())
    return EXIT_FAILED if any("refused" in result for result in report["results"]) else 0


def _reports(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a cumulative report after each measured model."""
    return iter([_measure_here(args)]) if len(args.model) == 1 else _each(args)


def _measure_here(args: argparse.Namespace) -> dict[str, Any]:
    """Measure the command's only model in this process. Raises: CheckpointError, ConfigError."""
    from deploy.bench.engine.table import report

    case = _case(args, args.model[0])
    if args.compile_cache:
        from workers.programs.xla_cache import use_compile_cache

        use_compile_cache(args.compile_cache)
    say(
        f"{case.model}: making weights, compiling, then {case.repeats} times {case.batch}"
        " request(s)"
    )
    return report(case)


def _each(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure each model in a separate process.

    Memory peaks are then independent, and a process killed for memory does not end the others.
    Raises: CheckpointError: a model does not exist.
    """
    from deploy.bench.engine.case import configs_of
    from deploy.bench.engine.table import document

    for model in args.model:
        with configs_of(_case(args, model)):  # fail before hours of measurements
            pass
    report = document([])
    with tempfile.TemporaryDirectory() as folder:
        for number, model in enumerate(args.model):
            result = _in_own_process(args, model, Path(folder) / f"{number}.json")
            report = {**report, "results": [*report["results"], result]}
            yield report


def _in_own_process(args: argparse.Namespace, model: str, file: Path) -> dict[str, Any]:
    """Measure a model in a separate process; return its result, or how the process ended."""
    command = [*ATELIER, "bench", "engine", "--model", model, *_others(args), "--json", str(file)]
    environment = importing_atelier(os.environ)
    code = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL).returncode
    if file.is_file():
        (result,) = json.loads(file.read_text())["results"]
        return dict(result)
    end = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return {"model": model, "tiny": args.tiny, "refused": f"its process {end}"}


def _others(args: argparse.Namespace) -> Sequence[str]:
    """Return the command's options, except model and file, for the child process of a model."""
    chosen = {
        **{f"--{name}": getattr(args, name.replace("-", "_")) for name in REQUEST},
        "--guidance": args.guidance,
        "--batch": args.batch,
        "--exact-rows": args.exact_rows,
        "--batching": args.batching,
        "--lora-rank": args.lora_rank,
        "--mesh": args.mesh if args.mesh == "auto" else _spelled(args.mesh),
        "--devices": args.devices and f"{args.devices.start}-{args.devices.stop - 1}",
        "--dtype": args.dtype,
        "--activation-dtype": args.activation_dtype,
        "--eight-bit": args.eight_bit,
        "--repeats": args.repeats,
        "--compile-cache": args.compile_cache,
    }
    words = [word for name, value in without_none(**chosen).items() for word in (name, str(value))]
    words += ["--tiny"] if args.tiny else []
    if args.vae_tiling is not None:
        words.append("--vae-tiling" if args.vae_tiling else "--no-vae-tiling")
    return words


def _spelled(sizes: dict[str, int]) -> str:
    return ",".join(f"{axis}={size}" for axis, size in sizes.items())


def _case(args: argparse.Namespace, model: str) -> Any:
    from deploy.bench.engine.case import EngineCase

    request = without_none(
        width=args.width,
        height=args.height,
        num_frames=args.num_frames,
        num_inference_steps=args.steps,
        guidance_scale=args.guidance,
    )
    return EngineCase(
        model,
        request,
        batch=args.batch,
        exact_rows=args.exact_rows,
        batching=args.batching,
        mesh=args.mesh,
        devices=args.devices,
        dtype=args.dtype,
        activation_dtype=args.activation_dtype,
        eight_bit=args.eight_bit,
        vae_tiling=args.vae_tiling,
        lora_rank=args.lora_rank,
        repeats=args.repeats,
        tiny=args.tiny,
    )
