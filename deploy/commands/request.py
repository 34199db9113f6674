"""What `atelier generate` asks for: options for a request's fields, and the request they make."""

from __future__ import annotations

import argparse
import base64
import json
from pathlib import Path
from typing import Any

from deploy.commands.exits import UsageError
from deploy.commands.files import format_of
from deploy.commands.options import given


def add_fields(generate: argparse.ArgumentParser) -> None:
    generate.add_argument("--image", type=Path, metavar="FILE", help="picture to start from")
    generate.add_argument("--mask", type=Path, metavar="FILE", help="white where it is drawn anew")
    generate.add_argument("--last-image", type=Path, metavar="FILE", help="a clip's last picture")
    generate.add_argument("--quality", metavar="NAME", help="a preset, such as exact")
    for name in ("model", "negative-prompt"):
        generate.add_argument(f"--{name}", metavar="TEXT")
    for name in ("width", "height", "num-frames", "fps", "steps", "seed", "num-images"):
        generate.add_argument(f"--{name}", type=int, metavar="N")
    for name in ("guidance", "guidance-2", "guidance-rescale", "true-cfg-scale", "strength"):
        generate.add_argument(f"--{name}", type=float, metavar="X")
    generate.add_argument(
        "--scheduler",
        type=named,
        metavar="NAME[,OPTION=VALUE…]",
        help="such as unipc,flow_shift=3",
    )


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
