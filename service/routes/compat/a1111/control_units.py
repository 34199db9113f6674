"""Units of AUTOMATIC1111's ControlNet extension, converted to this API's `control`.

Source: Mikubill/sd-webui-controlnet, wiki page "API", and lib_controlnet of Forge (the same names).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from models.spec.controls import FIELD as CONTROL
from models.spec.model_spec import ModelSpec
from service.admission.parse import parse_as
from service.errors.problems import FieldError, Invalid
from service.jobs.model.job import FieldWarning
from service.routes.compat.endpoint import CompatibleRequestBody
from service.schemas.request_parts import ImageData

NAMES = frozenset({"controlnet"})
"""Names of the extension in `alwayson_scripts`, in lower case."""
PATH = "alwayson_scripts.controlnet.args"
MAX_UNITS = 16
MODULES = ("none", "canny")
"""Preprocessors that units may name."""
NO_PREPROCESSOR = frozenset({None, "", "none"})
BALANCED = frozenset({None, "", 0, "balanced"})
STRETCHED = frozenset({0, "just resize"})
NO_EFFECT = frozenset(
    (
        *("lowvram", "low_vram", "processor_res", "save_detected_map", "is_ui", "input_mode"),
        *("use_preview_as_input", "generated_image", "pixel_perfect", "hr_option"),
        *("inpaint_crop_input_image", "union_control_type", "pulid_mode"),
    )
)
"""Fields of a unit that do not change what a control of this server does."""
THRESHOLDS = {"threshold_a": (None, -1.0, 100.0), "threshold_b": (None, -1.0, 200.0)}
"""Thresholds of the preprocessor `canny` that equal this server's."""
_HASH = re.compile(r" \[[0-9a-f]{1,16}\]$")
"""Short hash that AUTOMATIC1111 appends to a file's name."""


class ControlUnit(CompatibleRequestBody):
    """Unit of AUTOMATIC1111's ControlNet extension: one control image with its settings."""

    model_config = ConfigDict(extra="allow")

    enabled: bool | None = True
    """Whether the unit has an effect."""
    image: Any = None
    """Control image in base64, or an object with it as `image`. Default: that of `img2img`."""
    input_image: ImageData | None = None
    """Former name of `image`."""
    mask: ImageData | None = None
    """Rejected, unless absent."""
    module: str | None = None
    """Preprocessor: `none` or `canny`."""
    model: str | None = None
    """One of the model's `controls`."""
    weight: float | None = 1.0
    """Strength of the effect."""
    guidance_start: Annotated[float, Field(ge=0, le=1)] | None = 0.0
    """Start of the effect, as a share of the steps."""
    guidance_end: Annotated[float, Field(ge=0, le=1)] | None = 1.0
    """End of the effect, as a share of the steps."""
    control_mode: Any = None
    """`Balanced`, or 0."""
    resize_mode: Any = None
    """Fit of an image of other proportions: here it is always stretched, as `Just Resize`."""
    threshold_a: float | None = None
    """First threshold of the preprocessor: without effect."""
    threshold_b: float | None = None
    """Second threshold of the preprocessor: without effect."""


@dataclass(frozen=True)
class Controls:
    """Controls of an AUTOMATIC1111 request: entries of `control`, and warnings about the units."""

    entries: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[FieldWarning] = field(default_factory=list)

    @property
    def fields(self) -> dict[str, Any]:
        """Return the `control` field of `POST /v1/generate`; empty without controls."""
        return {CONTROL: self.entries} if self.entries else {}


def alwayson_scripts(body: CompatibleRequestBody) -> Any:
    """Return the extensions (`alwayson_scripts`) of an AUTOMATIC1111 request; None without any."""
    return (body.model_extra or {}).get("alwayson_scripts")


def controls_of(scripts: Any, spec: ModelSpec, image: str | None) -> Controls:
    """Convert the enabled ControlNet units of `alwayson_scripts` to controls.

    Args:
        image: the request's input image, which units without an image of their own use.

    Raises: Invalid: a unit cannot be converted; the field is its path.
    """
    units = [*enumerate(_units(scripts))]
    read = [(f"{PATH}.{index}", _unit(unit, f"{PATH}.{index}")) for index, unit in units]
    enabled = [(path, unit) for path, unit in read if unit.enabled is not False]
    if errors := [error for path, unit in enabled for error in _errors(path, unit, spec, image)]:
        raise Invalid(errors)
    warnings = [warning for path, unit in enabled for warning in _warnings(path, unit)]
    return Controls([_entry(unit, spec, image) for _, unit in enabled], warnings)


def _units(scripts: Any) -> Sequence[Any]:
    """Return the units in the arguments of the ControlNet extension.

    Raises: Invalid: too many, or no list.
    """
    if not isinstance(scripts, Mapping):
        return ()
    named = [script for name, script in scripts.items() if str(name).lower() in NAMES]
    units = [unit for script in named for unit in _arguments(script)]
    if len(units) > MAX_UNITS:
        raise Invalid([FieldError(PATH, f"must have at most {MAX_UNITS} entries")])
    return units


def _arguments(script: Any) -> list[Any]:
    arguments = script.get("args") if isinstance(script, Mapping) else script
    if arguments in (None, [], {}):
        return []
    return arguments if isinstance(arguments, list) else [arguments]


def _unit(unit: Any, path: str) -> ControlUnit:
    """Parse a ControlNet unit. Raises: Invalid."""
    if unit in (False, None):
        return ControlUnit(enabled=False)
    if not isinstance(unit, Mapping):
        raise Invalid([FieldError(path, "must be an object")])
    try:
        return parse_as(ControlUnit, unit)
    except Invalid as problem:
        errors = [FieldError(f"{path}.{error.field}", error.message) for error in problem.errors]
        raise Invalid(errors) from None


def _errors(
    path: str, unit: ControlUnit, spec: ModelSpec, image: str | None
) -> Iterator[FieldError]:
    if CONTROL not in spec.fields or not spec.controls:
        message = f"the model {spec.name!r} has no controls; switch the unit off"
        yield FieldError(path, message)
        return
    if _name(unit, spec) is None:
        yield FieldError(f"{path}.model", f"must be {' or '.join(sorted(spec.controls))}")
    if _lower(unit.module) not in NO_PREPROCESSOR | {"canny"}:
        message = "is not supported; send the preprocessed image with the module none, or canny"
        yield FieldError(f"{path}.module", message)
    if _lower(unit.control_mode) not in BALANCED:
        yield FieldError(f"{path}.control_mode", "is not supported; send Balanced")
    if unit.mask or (isinstance(unit.image, Mapping) and unit.image.get("mask")):
        yield FieldError(f"{path}.mask", "is not supported; leave it out")
    if not isinstance(_image(unit) or image, str):
        yield FieldError(f"{path}.image", "must be an image in base64")
    for name, value in (unit.model_extra or {}).items():
        if value and name not in NO_EFFECT:
            yield FieldError(f"{path}.{name}", "is not supported; leave it out")


def _warnings(path: str, unit: ControlUnit) -> Iterator[FieldWarning]:
    if unit.resize_mode is not None and _lower(unit.resize_mode) not in STRETCHED:
        message = "has no effect; the control image is stretched to the size of the output"
        yield FieldWarning(field=f"{path}.resize_mode", message=message)
    if _lower(unit.module) == "canny":
        for name, usual in THRESHOLDS.items():
            if getattr(unit, name) not in usual:
                message = f"has no effect; canny has the threshold {usual[-1]:g} here"
                yield FieldWarning(field=f"{path}.{name}", message=message)


def _entry(unit: ControlUnit, spec: ModelSpec, image: str | None) -> dict[str, Any]:
    values = {
        "name": _name(unit, spec),
        "image": _image(unit) or image,
        "scale": unit.weight,
        "start": unit.guidance_start,
        "end": unit.guidance_end,
        "preprocess": "canny" if _lower(unit.module) == "canny" else None,
    }
    return {name: value for name, value in values.items() if value is not None}


def _image(unit: ControlUnit) -> Any:
    image = unit.image.get("image") if isinstance(unit.image, Mapping) else unit.image
    return image or unit.input_image or None


def _name(unit: ControlUnit, spec: ModelSpec) -> str | None:
    """Return the control that a ControlNet unit's `model` names; None: unknown, or not named."""
    wanted = _HASH.sub("", unit.model or "").lower()
    return next((name for name in spec.controls if name.lower() == wanted), None)


def _lower(value: Any) -> Any:
    """Return a value as lower-case text, so that it can be looked up in a set of names."""
    if isinstance(value, str):
        return value.lower()
    return value if isinstance(value, int | None) else str(value)
