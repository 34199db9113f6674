"""What `atelier generate` asks for: options for a request's fields, and the request they make."""

from __future__ import annotations

import argparse
import base64
import json
from pathlib import Path
from typing import Any

from deploy.cli.options import given, positive
from deploy.cli.output_files import format_of
from deploy.exit_codes import UsageError

PRIORITIES = ("low", "normal", "high")
TEXTS = {
    "model": "model to use (default: the server's only one)",
    "negative-prompt": "what to avoid; needs guidance",
}
COUNTS = {
    "width": "width in pixels (default: the model's)",
    "height": "height in pixels (default: the model's)",
    "num-frames": "number of frames of a video (default: the model's)",
    "fps": "frames per second of a video (default: the model's)",
    "steps": "number of denoising steps (default: the model's)",
    "seed": "random seed; the same one gives the same image (default: random)",
    "num-images": "number of images, with consecutive seeds (default: 1)",
}
SCALES = {
    "guidance": "guidance scale: how closely to follow the prompt (default: the model's)",
    "guidance-2": "guidance scale of Wan 2.2's second expert (default: --guidance)",
    "guidance-rescale": "0 to 1: less oversaturation at strong guidance (default: 0)",
    "true-cfg-scale": "guidance scale of Flux with a negative prompt (default: the model's)",
    "strength": "0 to 1: how much of --image to redraw (default: the model's)",
}


def add_fields(generate: argparse.ArgumentParser) -> None:
    generate.add_argument("--image", type=Path, metavar="FILE", help="image to start from")
    generate.add_argument(
        "--mask", type=Path, metavar="FILE", help="mask: white where the image is redrawn"
    )
    generate.add_argument("--last-image", type=Path, metavar="FILE", help="last frame of the video")
    generate.add_argument("--quality", metavar="NAME", help="quality preset, such as exact")
    for options, (kind, metavar) in (
        (TEXTS, (str, "TEXT")),
        (COUNTS, (int, "N")),
        (SCALES, (float, "X")),
    ):
        for name, said in options.items():
            generate.add_argument(f"--{name}", type=kind, metavar=metavar, help=said)
    generate.add_argument(
        "--scheduler",
        type=named,
        metavar="NAME[,OPTION=VALUE…]",
        help="scheduler instead of the checkpoint's, such as unipc,flow_shift=3",
    )
    _add_service(generate)


def _add_service(generate: argparse.ArgumentParser) -> None:
    generate.add_argument(
        "--priority", choices=PRIORITIES, help="priority among the tenant's jobs (default: normal)"
    )
    generate.add_argument(
        "--deadline",
        type=positive,
        metavar="SECONDS",
        help="expire the job if it is not done in this time",
    )
    generate.add_argument(
        "--metadata",
        type=_pair,
        action="append",
        metavar="NAME=TEXT",
        help="metadata returned with the job; repeatable",
    )
    generate.add_argument("--webhook", metavar="URL", help="URL to notify when the job has ended")


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"wants NAME=TEXT, not {text!r}")
    return name, value


def named(text: str) -> dict[str, Any]:
    """`name,option=value,…`, as a request has its scheduler; a value is JSON, or else a text."""
    name, *options = text.split(",")
    chosen: dict[str, Any] = {"name": name}
    for option in options:
        key, equals, value = option.partition("=")
        if not (key and equals):
            raise argparse.ArgumentTypeError(f"wants OPTION=VALUE, not {option!r}")
        try:
            chosen[key] = json.loads(value)
        except ValueError:
            chosen[key] = value
    return chosen


def body_of(args: argparse.Namespace) -> dict[str, Any]:
    """Raises: UsageError: a file that cannot be read, or none that could be written."""
    body = given(
        prompt=args.prompt,
        model=args.model,
        quality=args.quality,
        negative_prompt=args.negative_prompt,
        width=args.width,
        height=args.height,
        num_frames=args.num_frames,
        fps=args.fps,
        num_inference_steps=args.steps,
        scheduler=args.scheduler,
        guidance_scale=args.guidance,
        guidance_scale_2=args.guidance_2,
        guidance_rescale=args.guidance_rescale,
        true_cfg_scale=args.true_cfg_scale,
        seed=args.seed,
        num_images=args.num_images,
        strength=args.strength,
        priority=args.priority,
        deadline_s=args.deadline,
        metadata=args.metadata and dict(args.metadata),
        webhook=args.webhook and {"url": args.webhook},
    )
    files = {"image": args.image, "mask_image": args.mask, "last_image": args.last_image}
    body |= {name: _encoded(path) for name, path in files.items() if path}
    if args.output:
        body["output"] = {"format": format_of(args.output)}
    return body


def _encoded(path: Path) -> str:
    try:
        return base64.b64encode(path.read_bytes()).decode()
    except OSError as error:
        raise UsageError(f"can't read {str(path)!r}: {error.strerror}") from None
