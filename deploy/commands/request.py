"""What `atelier generate` asks for: options for a request's fields, and the request they make."""

from __future__ import annotations

import argparse
import base64
import json
from pathlib import Path
from typing import Any

from deploy.commands.exits import UsageError
from deploy.commands.files import format_of
from deploy.commands.options import given, positive

PRIORITIES = ("low", "normal", "high")
TEXTS = {
    "model": "a name of the server's models; may be left out where it has only one",
    "negative-prompt": "what is not to be seen; counts with guidance",
}
COUNTS = {
    "width": "pixels (the model's default)",
    "height": "pixels (the model's default)",
    "num-frames": "of a clip (the model's default)",
    "fps": "frames a second of a clip (the model's default)",
    "steps": "denoising steps (the model's default)",
    "seed": "the same one draws the same picture; left out: a random one",
    "num-images": "pictures, with seeds one after the other (1)",
}
SCALES = {
    "guidance": "how closely the prompt is followed (the model's default)",
    "guidance-2": "the same for Wan 2.2's second expert (as --guidance)",
    "guidance-rescale": "0 to 1: against burnt colours of strong guidance (0)",
    "true-cfg-scale": "of Flux with a negative prompt; above 1 it counts (the model's default)",
    "strength": "0 to 1: how much of --image is drawn anew (the model's default)",
}


def add_fields(generate: argparse.ArgumentParser) -> None:
    generate.add_argument("--image", type=Path, metavar="FILE", help="picture to start from")
    generate.add_argument("--mask", type=Path, metavar="FILE", help="white where it is drawn anew")
    generate.add_argument("--last-image", type=Path, metavar="FILE", help="a clip's last picture")
    generate.add_argument("--quality", metavar="NAME", help="a preset, such as exact")
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
        help="another one than the checkpoint's own, such as unipc,flow_shift=3",
    )
    _add_service(generate)


def _add_service(generate: argparse.ArgumentParser) -> None:
    generate.add_argument(
        "--priority", choices=PRIORITIES, help="before or behind other jobs of the tenant (normal)"
    )
    generate.add_argument(
        "--deadline", type=positive, metavar="SECONDS", help="from now: later it is of no use"
    )
    generate.add_argument(
        "--metadata",
        type=_pair,
        action="append",
        metavar="NAME=TEXT",
        help="given back untouched; may be repeated",
    )
    generate.add_argument("--webhook", metavar="URL", help="told when the job has ended")


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
