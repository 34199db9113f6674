"""Fields of AUTOMATIC1111's requests that do nothing here: taken where they would change nothing.

What would make another image is refused by name, with the value that is taken.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from service.errors.problems import FieldError, Invalid
from service.routes.compat.a1111.bodies import ImageToImage, TextToImage
from service.schemas.unknown_fields import unknown_field

IDLE = frozenset(
    (
        # of files on the server's disk and of its page; a job is kept in any case
        *("do_not_save_samples", "do_not_save_grid", "save_images", "include_init_images"),
        *("comments", "force_task_id", "override_settings_restore_afterwards"),
        *("url", "auth"),  # of SillyTavern's own server, which sends on what its page sent it
        # of hires fix, with which they are checked
        *("firstphase_width", "firstphase_height", "hr_checkpoint_name", "hr_sampler_name"),
        *("hr_scheduler", "hr_prompt", "hr_negative_prompt", "hr_cfg", "hr_additional_modules"),
        # of what is refused itself: a second seed, churn, a script
        *("subseed", "s_tmin", "s_tmax", "script_args"),
        # of networks that are not served: instruct-pix2pix, CLIP's layers, which SDXL ignores there
        *("image_cfg_scale", "clip_skip"),
    )
)
"""Fields that may have any value."""

NOTHING = (None, "", "None", False, 0)
OFF = (False, *NOTHING)
ZERO = (0, *NOTHING)
ONE = (1, None)
NEUTRAL: Mapping[str, Sequence[Any]] = {
    "styles": ([], None, [""]),
    "subseed_strength": ZERO,
    "seed_resize_from_h": (*ZERO, -1),
    "seed_resize_from_w": (*ZERO, -1),
    "restore_faces": OFF,
    "tiling": OFF,
    "s_churn": ZERO,
    "s_noise": ONE,
    "s_min_uncond": ZERO,
    "firstpass_image": NOTHING,
    "script_name": NOTHING,
    "infotext": NOTHING,
    "latent_mask": NOTHING,
    "resize_mode": ZERO,
    "initial_noise_multiplier": ONE,
}
"""Values that each field may have; the first one, if any, is proposed."""
OF_IMAGES = ImageToImage.model_fields.keys() - {"init_images", "mask"}
"""Fields that do nothing without an image."""
MASKED: Mapping[str, Sequence[Any]] = {"mask_round": (True, None)}
"""Values that fields of a mask may have, where there is one."""
OPTIONS = frozenset({"CLIP_stop_at_last_layers", "samples_format", "save_images_add_number"})
"""Options that may have any value: SDXL ignores CLIP's layers there, too."""
NEUTRAL_OPTIONS: Mapping[str, Sequence[Any]] = {
    "sd_vae": ("Automatic", "N/A", *NOTHING),
    "forge_additional_modules": ([], *NOTHING),
    "eta_noise_seed_delta": ZERO,
    "sd_checkpoint_hash": NOTHING,
}
"""Values that options may have."""


def check(asked: TextToImage, *, has_mask: bool = False) -> None:
    """Check what a request has beside the fields that are read. Raises: Invalid."""
    errors = [*_wrong(asked.__pydantic_extra__ or {}, has_mask)]
    errors += _wrong_options(asked.override_settings or {})
    if errors:
        raise Invalid(errors)


def _wrong(given: Mapping[str, Any], has_mask: bool) -> Iterator[FieldError]:
    for name, value in given.items():
        if name == "alwayson_scripts":
            yield from _running_scripts(value)
        elif name in NEUTRAL or (name in MASKED and has_mask):
            allowed = NEUTRAL.get(name) or MASKED[name]
            if value not in allowed:
                yield FieldError(name, _not_served(allowed))
        elif name not in IDLE and name not in MASKED and name not in OF_IMAGES:
            yield unknown_field([name], TextToImage)


def _not_served(allowed: Sequence[Any]) -> str:
    proposed = "" if allowed[0] is None else f" or send {json.dumps(allowed[0])}"
    return f"is not served here; leave it out{proposed}"


def _running_scripts(scripts: Any) -> Iterator[FieldError]:
    """Scripts that are switched on: one that is off has no arguments, or false as the first."""
    if scripts is None:
        return
    if not isinstance(scripts, dict):
        yield FieldError("alwayson_scripts", "must be an object")
        return
    for name, script in scripts.items():
        args = script.get("args") if isinstance(script, dict) else script
        if args and not _is_off(args):
            said = "is not served here; switch the extension off"
            yield FieldError(f"alwayson_scripts.{name}", said)


def _is_off(args: Any) -> bool:
    first = args[0] if isinstance(args, list) else args
    if isinstance(first, dict):
        return first.get("enabled", first.get("enable")) is False
    return first is False or first is None


def _wrong_options(given: Mapping[str, Any]) -> Iterator[FieldError]:
    for name, value in given.items():
        if name == "sd_model_checkpoint" or name in OPTIONS:
            continue
        allowed = NEUTRAL_OPTIONS.get(name)
        if allowed is None:
            said = "is not served here; leave it out. There is sd_model_checkpoint"
            yield FieldError(f"override_settings.{name}", said)
        elif value not in allowed:
            yield FieldError(f"override_settings.{name}", _not_served(allowed))
