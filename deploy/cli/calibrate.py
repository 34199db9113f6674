"""`atelier calibrate`: step-cache plans for one model, with their speed and image quality."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy.cli.options import (
    DTYPES,
    Commands,
    add_settings,
    count,
    devices,
    settings_of,
    text_of,
    without_none,
)
from deploy.cli.requirements import check_pools
from deploy.exit_codes import UsageError

if TYPE_CHECKING:
    from models.spec.quality_presets import Quality


def add(commands: Commands) -> None:
    """Add the command `atelier calibrate` and its options to the parser."""
    calibrate = commands.add_parser(
        "calibrate", help="find faster presets for a model, and measure their difference from exact"
    )
    add_settings(calibrate)
    calibrate.add_argument(
        "--model",
        required=True,
        metavar="NAME-or-SOURCE",
        help="a model of the settings, a folder in diffusers' layout, or a hub id",
    )
    calibrate.add_argument(
        "--pool", metavar="NAME", help="pool whose layout to use (default: the first)"
    )
    calibrate.add_argument(
        "--devices",
        type=devices,
        metavar="FIRST-LAST",
        help="devices of this machine to use (default: all)",
    )
    calibrate.add_argument(
        "--dtype",
        choices=DTYPES,
        default="bfloat16",
        help="data type of a model that is in no settings (default: bfloat16)",
    )
    calibrate.add_argument(
        "--prompts", metavar="FILE", help="prompts to generate, one per line; -: standard input"
    )
    for name, about in (
        ("images", "number of images of the set (default: one for each prompt)"),
        ("width", "width in pixels (default: the model's)"),
        ("height", "height in pixels (default: the model's)"),
        ("num-frames", "number of frames of a video (default: the model's)"),
    ):
        calibrate.add_argument(f"--{name}", type=count, metavar="N", help=about)
    calibrate.add_argument(
        "--steps",
        type=count,
        nargs="+",
        metavar="N",
        help="numbers of denoising steps (default: the model's): presets are chosen and measured at"
        " the first, and get plans for the others",
    )
    calibrate.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="file to write the presets into (default: atelier.json in the checkpoint's folder); "
        "required for a checkpoint in an object store, and for a single file",
    )
    calibrate.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run `atelier calibrate`: print a table, and write the presets where workers load them."""
    check_pools()
    prompts = _prompts(args)
    settings = settings_of(args)
    from models.checkpoint.presets_file import write_qualities
    from models.spec.request import RequestError
    from service.tracing.log_format import log_to_stderr
    from workers.calibration.calibrate import Calibration, NothingToPlan
    from workers.calibration.drawing import requests
    from workers.calibration.opened import CalibrationTarget, opened

    log_to_stderr(settings.log_level, settings.log_format, settings.tracing.gcp_project)
    target = CalibrationTarget(args.model, args.pool, args.devices, args.dtype)
    try:
        with opened(settings, target, args.out) as (generator, file):
            given_fields = _fields(args)
            wanted = requests(generator.pipeline, prompts, given_fields)
            about = _about(given_fields, prompts)
            calibrated = Calibration(generator, wanted, about).run()
            presets = calibrated.presets
            for steps in (args.steps or ())[1:]:
                others = [{**fields, "num_inference_steps": steps} for fields in wanted]
                presets = Calibration(generator, others, about).extended(presets)
    except (RequestError, NothingToPlan) as error:
        raise UsageError(str(error)) from None
    write_qualities(file, presets)
    print(_table(presets))
    print(f"\n{calibrated.candidates} candidates were tried; written to {file}")
    return 0


def _prompts(args: argparse.Namespace) -> list[str]:
    """Read the calibration prompts of the command. Raises: UsageError: unreadable or empty file."""
    from workers.calibration.prompts import PROMPTS

    lines = list(PROMPTS) if args.prompts is None else text_of(args.prompts).splitlines()
    prompts = [line.strip() for line in lines if line.strip()]
    if not prompts:
        raise UsageError(f"{args.prompts}: there is no prompt in it")
    number = args.images or len(prompts)
    return [prompts[index % len(prompts)] for index in range(number)]


def _fields(args: argparse.Namespace) -> dict[str, Any]:
    return without_none(
        num_inference_steps=args.steps[0] if args.steps else None,
        width=args.width,
        height=args.height,
        num_frames=args.num_frames,
    )


def _about(fields: Mapping[str, Any], prompts: list[str]) -> str:
    """Describe a calibration: digest of its requests, versions and machine."""
    import hashlib

    from deploy.bench.machine import machine, versions

    digest = hashlib.sha256("\n".join(prompts).encode()).hexdigest()[:8]
    chosen = "".join(f", {name} {value}" for name, value in fields.items())
    used = ", ".join(f"{name} {number}" for name, number in versions().items() if name == "jax")
    return (
        f"{len(prompts)} images of the calibration set {digest}{chosen}; {used}, "
        f"{machine()['processor']}"
    )


def _table(presets: Mapping[str, Quality]) -> str:
    head = ("preset", "PSNR, median", "worst", "operations", "time of the steps")
    rows = [
        (
            name,
            f"{preset.psnr_db:.1f} dB",
            f"{preset.measured.worst_db:.1f} dB",
            f"{preset.measured.operations:.2f}",
            f"{preset.measured.time:.2f}",
        )
        for name, preset in presets.items()
        if preset.measured is not None and preset.psnr_db is not None
    ]
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
