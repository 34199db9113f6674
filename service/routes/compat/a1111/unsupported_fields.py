"""AUTOMATIC1111 fields without support here: accepted if they would not change the image.

Other values are rejected by name, with an accepted value.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from service.errors.problems import FieldError, Invalid
from service.routes.compat.a1111 import control_units
from service.routes.compat.a1111.bodies import FIELDS_OF_SCRIPTS, ImageToImage, TextToImage
from service.routes.compat.hosted_fields import asks_for_nothing
from service.schemas.unknown_fields import unknown_field

IGNORED_FIELDS = frozenset(
    (
        # files on the server's disk, and its web page; jobs are stored in any case
        *("do_not_save_samples", "do_not_save_grid", "save_images", "include_init_images"),
        *("comments", "force_task_id", "override_settings_restore_afterwards"),
        *("url", "auth"),  # forwarded by SillyTavern's server from its page
        # hires fix, checked in hires.py
        *("firstphase_width", "firstphase_height", "hr_checkpoint_name", "hr_sampler_name"),
        *("hr_scheduler", "hr_prompt", "hr_negative_prompt", "hr_cfg", "hr_additional_modules"),
        "hr_distilled_cfg",
        # options of rejected features: a second seed, churn, a script
        *("subseed", "s_tmin", "s_tmax", "script_args"),
        # unsupported networks: instruct-pix2pix; CLIP's layers, which SDXL ignores there, too
        *("image_cfg_scale", "clip_skip"),
    )
)
"""Fields that are ignored, regardless of their value."""

EMPTY_VALUES = (None, "", "None", False, 0)
OFF_VALUES = (False, *EMPTY_VALUES)
ZERO_VALUES = (0, *EMPTY_VALUES)
ONE_VALUES = (1, None)
NEUTRAL_VALUES: Mapping[str, Sequence[Any]] = {
    "styles": ([], None, [""]),
    "subseed_strength": ZERO_VALUES,
    "seed_resize_from_h": (*ZERO_VALUES, -1),
    "seed_resize_from_w": (*ZERO_VALUES, -1),
    "restore_faces": OFF_VALUES,
    "tiling": OFF_VALUES,
    "s_churn": ZERO_VALUES,
    "s_noise": ONE_VALUES,
    "s_min_uncond": ZERO_VALUES,
    "firstpass_image": EMPTY_VALUES,
    "script_name": EMPTY_VALUES,
    "infotext": EMPTY_VALUES,
    "latent_mask": EMPTY_VALUES,
    "resize_mode": (*ZERO_VALUES, "Just resize"),
    "initial_noise_multiplier": ONE_VALUES,
}
"""Accepted values by field; errors propose the first."""
IMAGE_ONLY_FIELDS = ImageToImage.model_fields.keys() - {"init_images", "mask"}
"""Fields that have no effect without an input image."""
NEUTRAL_WITH_MASK: Mapping[str, Sequence[Any]] = {"mask_round": (True, None)}
"""Accepted values by field, if the request has a mask."""
ELSEWHERE: Mapping[str, str] = {
    **dict.fromkeys(
        ("model", "model_name", "checkpoint", "sd_model", "sd_model_checkpoint"),
        "name the model in override_settings.sd_model_checkpoint",
    ),
    **dict.fromkeys(
        ("init_image", "init_images", "image", "mask"),
        "send init_images and mask to /sdapi/v1/img2img",
    ),
    "sampler": "did you mean sampler_name?",
    "num_inference_steps": "did you mean steps?",
    "guidance_scale": "did you mean cfg_scale?",
    "strength": "did you mean denoising_strength?",
    "num_images": "did you mean batch_size?",
    "loras": "write <lora:NAME:0.8> in the prompt",
}
"""Advice by unknown field: names of other APIs, and of `img2img` alone."""
MODULES = "forge_additional_modules"
"""Option of Forge: files of the VAE and text encoders, which Flux needs there."""
IGNORED_OPTIONS = frozenset(
    (
        MODULES,
        # SDXL ignores CLIP's layers in AUTOMATIC1111, too
        *("CLIP_stop_at_last_layers", "enable_pnginfo", "return_grid", "multiple_tqdm"),
        # the device's memory and speed, and encodings of files on the server's disk
        *("sd_checkpoints_limit", "sd_checkpoint_cache", "sd_vae_checkpoint_cache", "upcast_attn"),
        *("jpeg_quality", "webp_lossless", "cross_attention_optimization"),
        "face_restoration_model",
        # the source of noise: pixels equal diffusers', not AUTOMATIC1111's
        *("randn_source", "enable_batch_seeds", "forge_preset", "forge_inference_memory"),
        *("forge_unet_storage_dtype", "forge_async_loading", "forge_pin_shared_memory"),
    )
)
"""Options that are ignored, regardless of their value."""
IGNORED_PREFIXES = (
    *("save_", "samples_", "grid_", "outdir_", "directories_", "live_preview", "show_progress"),
    *("ui_", "interrogate_", "memmon_", "extra_networks_", "export_", "img_", "target_side"),
)
"""First letters of ignored options: files on the server's disk, and its page."""
NEUTRAL_OPTIONS: Mapping[str, Sequence[Any]] = {
    "sd_vae": ("Automatic", "N/A", *EMPTY_VALUES),
    "eta_noise_seed_delta": ZERO_VALUES,
    "sd_checkpoint_hash": EMPTY_VALUES,
    "filter_nsfw": OFF_VALUES,
    "face_restoration": OFF_VALUES,
    "tiling": OFF_VALUES,
    "emphasis": ("Original", None),
    "enable_emphasis": (True, None),
    **dict.fromkeys(("initial_noise_multiplier", "inpainting_mask_weight"), ONE_VALUES),
    **dict.fromkeys(
        (
            *("token_merging_ratio", "token_merging_ratio_hr", "token_merging_ratio_img2img"),
            *("img2img_extra_noise", "s_churn", "s_tmin", "s_min_uncond"),
        ),
        ZERO_VALUES,
    ),
    **dict.fromkeys(
        (
            *("img2img_color_correction", "img2img_fix_steps", "use_old_scheduling"),
            *("use_old_karras_scheduler_sigmas", "use_old_emphasis_implementation"),
            *("always_discard_next_to_last_sigma", "hires_fix_use_firstpass_conds"),
        ),
        OFF_VALUES,
    ),
}
"""Accepted values by option."""


def check(body: TextToImage, *, has_mask: bool = False) -> None:
    """Check AUTOMATIC1111 fields and options that the conversion does not read. Raises: Invalid."""
    errors = [*_wrong(body.__pydantic_extra__ or {}, has_mask)]
    errors += wrong_options(body.override_settings or {}, "override_settings.")
    if errors:
        raise Invalid(errors)


def _wrong(extra_fields: Mapping[str, Any], has_mask: bool) -> Iterator[FieldError]:
    for name, value in extra_fields.items():
        if name == "alwayson_scripts":
            yield from _running_scripts(value)
        elif name in NEUTRAL_VALUES or (name in NEUTRAL_WITH_MASK and has_mask):
            allowed = NEUTRAL_VALUES.get(name) or NEUTRAL_WITH_MASK[name]
            if _plain(value) not in allowed:
                yield FieldError(name, _not_served(allowed))
        elif (
            name not in IGNORED_FIELDS
            and name not in NEUTRAL_WITH_MASK
            and name not in IMAGE_ONLY_FIELDS
            and not asks_for_nothing(value)
        ):
            yield _unknown(name)


def _unknown(name: str) -> FieldError:
    """Create the error for an unknown field, with AUTOMATIC1111's field of its meaning, if any."""
    if name in ELSEWHERE:
        return FieldError(name, f"there is no such field; {ELSEWHERE[name]}")
    return unknown_field([name], TextToImage)


def _plain(value: Any) -> Any:
    """Return a text that is a switch as true or false."""
    switches = {"false": False, "true": True}
    return switches.get(value.strip().lower(), value) if isinstance(value, str) else value


def _not_served(allowed: Sequence[Any]) -> str:
    proposed = "" if allowed[0] is None else f" or send {json.dumps(allowed[0])}"
    return f"is not supported; leave it out{proposed}"


def _running_scripts(scripts: Any) -> Iterator[FieldError]:
    """Report enabled scripts; a disabled script has no arguments, or false as the first."""
    if scripts in (None, []):
        return
    if not isinstance(scripts, dict):
        yield FieldError("alwayson_scripts", "must be an object")
        return
    for name, script in scripts.items():
        args = script.get("args") if isinstance(script, dict) else script
        if str(name).lower() not in control_units.NAMES and args and not _is_off(name, args):
            message = "is not supported; switch the extension off"
            yield FieldError(f"alwayson_scripts.{name}", message)


def _is_off(name: str, args: Any) -> bool:
    args = args if isinstance(args, list) else [args]
    if fields := FIELDS_OF_SCRIPTS.get(str(name).lower()):
        rest = args[len(fields) :]  # Seed's: a switch, a second seed, its strength, two sides
        return not (rest and rest[0] and any(rest[2:]))
    units = [unit for unit in args if isinstance(unit, dict)]
    return _plain(args[0]) in (False, None) or (bool(units) and all(map(_is_unit_off, units)))


def _is_unit_off(unit: Mapping[str, Any]) -> bool:
    """Return whether a unit of an extension is disabled, or has no model (ADetailer)."""
    return unit.get("enabled", unit.get("enable")) is False or unit.get("ad_model") == "None"


def wrong_options(options: Mapping[str, Any], prefix: str = "") -> Iterator[FieldError]:
    """Report options of AUTOMATIC1111's settings that would change the image.

    Args:
        prefix: path of the options in the request, with a dot.
    """
    for name, value in options.items():
        if name == "sd_model_checkpoint" or name in IGNORED_OPTIONS:
            continue
        if name.startswith(IGNORED_PREFIXES):
            continue
        allowed = NEUTRAL_OPTIONS.get(name)
        if allowed is None:
            message = "is not supported; leave it out. The supported option is sd_model_checkpoint"
            yield FieldError(f"{prefix}{name}", message)
        elif _plain(value) not in allowed:
            yield FieldError(f"{prefix}{name}", _not_served(allowed))
