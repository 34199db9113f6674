"""Options of `atelier generate`, one for each field of the API's request schema."""

from __future__ import annotations

import argparse
import base64
import json
import math
import operator
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from deploy.cli.options import without_none
from deploy.cli.output_files import format_of
from deploy.exit_codes import UsageError

SHORT = {
    "num_inference_steps": "steps",
    "guidance_scale": "guidance",
    "guidance_scale_2": "guidance-2",
    "mask_image": "mask",
    "deadline_s": "deadline",
    "draft_ttl_s": "draft-ttl",
    "loras": "lora",
    "reference_images": "reference-image",
    "image_prompts": "image-prompt",
}
"""Options whose name differs from their field's."""
SWITCH = "switch"
"""Only field of the refiner object."""
OFF = "none"
"""Value that disables a model's default."""
AIM = "min_psnr_db="
"""Prefix of a quality target, in place of a preset's name."""
_SWITCHED_OFF = object()
NO_OPTION = frozenset({"prompt", "output"})
"""Fields without an option: the prompt is an argument, `--output` gives the format."""


def add_fields(generate: argparse.ArgumentParser) -> None:
    """Add an option of `atelier generate` for every field of the request schema."""
    for field, schema in _fields().items():
        if field not in NO_OPTION:
            option = SHORT.get(field, field.replace("_", "-"))
            text = _help(schema["description"])
            generate.add_argument(f"--{option}", dest=field, help=text, **_kind(field, schema))


def body_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return the request body of the options.

    Raises: UsageError: a file cannot be read, or the output's format is unknown.
    """
    from models.spec.request_images import with_images

    body = without_none(**{field: getattr(args, field) for field in _fields() if field != "output"})
    body = with_images(body, lambda _, path: _encoded(path))
    if "metadata" in body:
        body["metadata"] = dict(body["metadata"])
    if args.output:
        body["output"] = {"format": format_of(args.output)}
    return {name: None if value is _SWITCHED_OFF else value for name, value in body.items()}


def _fields() -> Mapping[str, Mapping[str, Any]]:
    """Return the JSON schema of each request field, without null, with references resolved."""
    from service.schemas.request import GenerateRequest

    document = GenerateRequest.model_json_schema()
    return {
        name: _resolved(schema, document["$defs"])
        for name, schema in document["properties"].items()
    }


def _resolved(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    kinds = (kind for kind in schema.get("anyOf", [schema]) if kind.get("type") != "null")
    kind = next(kinds)
    kind = kind.get("oneOf", [kind])[0]
    below = definitions[kind["$ref"].rpartition("/")[2]] if "$ref" in kind else {}
    return {**below, **kind, **schema}


def _kind(field: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `add_argument` for the type of a request field."""
    from models.spec.request_images import LISTED_IMAGES, SINGLE_IMAGE_FIELDS, VIDEO_FIELDS

    if field in (*SINGLE_IMAGE_FIELDS, *VIDEO_FIELDS):
        return {"type": Path, "metavar": "FILE"}
    if LISTED_IMAGES.get(field):
        return {"type": _with_image, "action": "append", "metavar": "FILE[,OPTION=VALUE…]"}
    if field in LISTED_IMAGES:
        return {"type": Path, "action": "append", "metavar": "FILE"}
    if field == "quality":
        return {"type": _quality, "metavar": f"NAME|{AIM}X"}
    if "enum" in schema:
        return {"choices": schema["enum"]}
    match schema["type"]:
        case "integer":
            return {"type": partial(_within, schema, int), "metavar": "N"}
        case "number":
            return {"type": partial(_within, schema, float), "metavar": "X"}
        case "array" if "$ref" in schema["items"]:
            return {"type": _lora, "action": "append", "metavar": "NAME[:SCALE]"}
        case "array":
            return {"type": _numbers, "metavar": "N,N…"}
        case "object":
            return _object(schema)
        case _:
            return {"metavar": "TEXT"}


def _object(schema: Mapping[str, Any]) -> dict[str, Any]:
    names = schema.get("properties", {})
    if "name" in names:
        return {"type": named, "metavar": "NAME[,OPTION=VALUE…]"}
    if SWITCH in names:
        return {"type": _switch, "metavar": "SWITCH"}
    if "url" in names:
        return {"type": lambda url: {"url": url}, "metavar": "URL"}
    if names:
        return {"type": _chosen, "metavar": f"OPTION=VALUE[,…]|{OFF}"}
    return {"type": _pair, "action": "append", "metavar": "NAME=TEXT"}


def _quality(text: str) -> object:
    """Parse a quality option: a preset's name, or `min_psnr_db=X`."""
    return members(text) if text.startswith(AIM) else text


def _chosen(text: str) -> object:
    """Parse the `option=value,…` of hires fix, or `none`."""
    return _SWITCHED_OFF if text == OFF else members(text)


def members(text: str) -> dict[str, Any]:
    """Parse `option=value,…` as the members of an object."""
    return _options(text.split(","))


def _switch(text: str) -> dict[str, Any]:
    """Parse the refiner option: the share of the steps at which the refiner begins."""
    (switch,) = _numbers(text)
    return {SWITCH: float(switch)}


def _help(description: str) -> str:
    """Format a field's first sentence and default as help text."""
    first, *rest = " ".join(description.split()).removesuffix(".").split(". ")
    default = next((text for text in rest if text.startswith("Default: ")), "")
    text = first[:1].lower() + first[1:] if first[1:2].islower() else first
    if default:
        text += f" (default: {default.removeprefix('Default: ').partition(',')[0]})"
    return text.replace("%", "%%")


def _within(schema: Mapping[str, Any], kind: type[int] | type[float], text: str) -> float:
    """Parse a number, and check the bounds of the field's schema."""
    try:
        value = kind(text)
    except ValueError:
        called = "an integer" if kind is int else "a number"
        raise argparse.ArgumentTypeError(f"must be {called}, not {text!r}") from None
    bounds = (
        ("must be at least", schema.get("minimum", -math.inf), operator.ge),
        ("must be more than", schema.get("exclusiveMinimum", -math.inf), operator.gt),
        ("must be at most", schema.get("maximum", math.inf), operator.le),
    )
    for message, bound, holds in bounds:
        if math.isfinite(bound) and not holds(value, bound):
            raise argparse.ArgumentTypeError(
                f"{message} {bound if kind is int else format(bound, 'g')}"
            )
    return value


def _numbers(text: str) -> list[float]:
    try:
        return [json.loads(part) + 0 for part in text.split(",")]
    except (ValueError, TypeError):
        raise argparse.ArgumentTypeError(f"must be numbers, as in 1,2, not {text!r}") from None


def _lora(text: str) -> dict[str, Any]:
    """Parse a LoRA option: `NAME` or `NAME:SCALE`."""
    name, colon, scale = text.rpartition(":")
    if not colon:
        return {"name": text}
    try:
        return {"name": name, "scale": float(scale)}
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be NAME or NAME:SCALE, not {text!r}") from None


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"must be NAME=TEXT, not {text!r}")
    return name, value


def named(text: str) -> dict[str, Any]:
    """Parse `name,option=value,…`, such as a scheduler."""
    name, *options = text.split(",")
    return {"name": name, **_options(options)}


def _with_image(text: str) -> dict[str, Any]:
    """Parse `file,option=value,…` as an entry of a list of images."""
    file, *options = text.split(",")
    return {"image": Path(file), **_options(options)}


def _options(texts: Sequence[str]) -> dict[str, Any]:
    """Parse `option=value` texts; a value is JSON or plain text."""
    chosen: dict[str, Any] = {}
    for option in texts:
        key, equals, value = option.partition("=")
        if not (key and equals):
            raise argparse.ArgumentTypeError(f"must be OPTION=VALUE, not {option!r}")
        try:
            chosen[key] = json.loads(value)
        except ValueError:
            chosen[key] = value
    return chosen


def _encoded(path: Path) -> str:
    try:
        return base64.b64encode(path.read_bytes()).decode()
    except OSError as error:
        raise UsageError(f"can't read {str(path)!r}: {error.strerror}") from None
