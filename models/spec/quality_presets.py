"""Presets of `quality`: optimizations that trade fidelity to the exact image for speed. No JAX.

`exact` runs without optimizations. A preset is a frozen value that combines independent
optimizations. Guidance intervals run some steps without the negative prompt. Step caches reuse the
last full step's residuals. 8-bit matrix products have rounded weights, and exact or rounded
activations. Progressive size runs the first steps at a smaller size.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from models.spec.frozen import FrozenModel
from models.spec.option import OptionError
from models.spec.step_plan import PlannedCache, Weights

EXACT = "exact"
"""Name of the preset without optimizations."""
EightBit = Literal["beside", "instead"]
"""Storage of 8-bit weights: in addition to the exact weights, or instead of them."""

EightBitProducts = Literal["w8a16", "w8a8"]
"""Bits of weights and activations of a matrix product, named as in vLLM: weight-only or dynamic
quantization. `a16` means the activations' usual type."""
EIGHT_BIT_PRESETS: Mapping[EightBitProducts, str] = MappingProxyType(
    {"w8a16": "eight-bit-weights", "w8a8": "eight-bit"}
)
"""Names of the presets that consist of 8-bit products alone."""

SignalKind = Literal["first-block", "teacache"]
CacheKind = Literal["first-block", "teacache", "planned"]
Optimization = Literal["guidance", "step_cache", "planned_cache", "eight_bit", "progressive"]
"""Name of an optimization. `planned_cache` is a step cache with a plan; some families support it
without supporting caches that measure a signal."""
CACHES: frozenset[Optimization] = frozenset({"step_cache", "planned_cache"})
OPTIMIZATIONS: frozenset[Optimization] = frozenset(
    {"guidance", "eight_bit", "progressive", *CACHES}
)
FIELDS = frozenset({"guidance", "step_cache", "eight_bit", "progressive"})
"""Fields of a preset that change the image."""

THRESHOLD, COEFFICIENTS, WEIGHTS = "cache_threshold", "cache_coefficients", "cache_weights"
"""Inputs of a step with a step cache, read by `models.nn.layers.step_cache`."""

LONGEST_NAME = 200
"""Maximum length of a preset's name in a request."""

DEGREES = 5
"""Maximum number of polynomial coefficients, including the constant."""


class GuidanceInterval(FrozenModel):
    """Interval of guided steps, as shares of all steps, as in diffusers' guiders.

    Source: Kynkäänniemi et al. 2024 (Applying Guidance in a Limited Interval).
    """

    start: float = Field(default=0.0, ge=0, le=1)
    """Share of the steps before the first guided step."""
    stop: float = Field(default=1.0, ge=0, le=1)
    """Share of the steps before guidance ends."""

    @model_validator(mode="after")
    def _validate(self) -> GuidanceInterval:
        if self.start > self.stop:
            raise ValueError(f"start {self.start} must not be above stop {self.stop}")
        return self

    def includes(self, step: int, steps: int) -> bool:
        """Return whether guidance runs in that step."""
        return int(self.start * steps) <= step < int(self.stop * steps)


class StepCache(FrozenModel):
    """Step cache that measures a signal to decide which steps reuse the last full step's residual.

    `first-block`: reuse if the residual of the first block has changed by less than the threshold
    since the last full step (relative mean). `teacache`: reuse while the accumulated changes of the
    first block's input since the last full step stay below the threshold.

    Source: Cheng 2024 (ParaAttention, first block cache); Liu et al. 2024 (TeaCache), eq. 4 to 7.
    """

    kind: SignalKind
    """Signal that measures the change."""
    threshold: float = Field(gt=0)
    """Change below which a step reuses the last full step's residual. Larger values are faster and
    less exact."""
    coefficients: tuple[float, ...] = Field(default=(1.0, 0.0), min_length=1, max_length=DEGREES)
    """Polynomial of TeaCache that rescales each change before accumulation, highest degree first;
    fitted to one network."""


class Progressive(FrozenModel):
    """Progressive size: the first steps run at a smaller size, the others at full size.

    Requests with images or hires fix run all steps at full size.
    """

    scale: float = Field(gt=0, lt=1)
    """Scale of both sides in the first steps, rounded to a size that the model supports."""
    until: float = Field(gt=0, lt=1)
    """Share of the steps that run at the smaller size."""


def _from_boolean(eight_bit: object) -> object:
    """Convert the former boolean values of `eight_bit` in presets: true meant `w8a8`."""
    return {True: "w8a8", False: None}[eight_bit] if isinstance(eight_bit, bool) else eight_bit


class Measured(FrozenModel):
    """Measurements of a preset, compared with exact images of the same calibration requests."""

    steps: int = Field(ge=1)
    """Denoising steps of each image."""
    images: int = Field(ge=1)
    """Number of images, each with its own prompt and seed."""
    worst_db: float
    """Lowest PSNR of an image."""
    operations: float = Field(gt=0)
    """Operations of the steps, as a share of the exact steps' operations."""
    time: float = Field(gt=0)
    """Median time of the steps, as a share of the exact steps' time, on the measuring devices."""


class Quality(FrozenModel):
    """Preset of `quality`: the optimizations that it enables, with their parameters."""

    guidance: GuidanceInterval | None = None
    """Interval of guided steps; null: all steps."""
    step_cache: Annotated[StepCache | PlannedCache, Field(discriminator="kind")] | None = None
    """Step cache; null: every step runs in full."""
    eight_bit: Annotated[EightBitProducts | None, BeforeValidator(_from_boolean)] = None
    """Precision of the blocks' matrix products: 8-bit weights (`w8a16`), or 8-bit weights and
    activations (`w8a8`). Values are int8, or 8-bit floats where the chip supports them and has no
    faster int8. Null: exact."""
    progressive: Progressive | None = None
    """Smaller size of the first steps; null: all steps have the full size."""
    psnr_db: float | None = None
    """Median PSNR of the preset's images compared with exact images, if measured; `about` describes
    the measurement."""
    measured: Measured | None = None
    """Further measurements by `atelier calibrate`, if any."""
    about: str = ""
    """Notes for operators and clients, for example how `psnr_db` was measured."""

    @property
    def optimizations(self) -> frozenset[Optimization]:
        """Optimizations that the quality preset enables."""
        cache: Optimization = "planned_cache" if self.depth else "step_cache"
        enabled: dict[Optimization, Any] = {
            "guidance": self.guidance,
            cache: self.step_cache,
            "eight_bit": self.eight_bit,
            "progressive": self.progressive,
        }
        return frozenset(name for name, options in enabled.items() if options)

    def restricted_to(self, optimizations: Collection[Optimization]) -> Quality:
        """Return the preset restricted to these optimizations."""
        kept = self.optimizations & set(optimizations)
        fields = {"step_cache" if name in CACHES else name for name in kept}
        return Quality(**{name: getattr(self, name) for name in fields})

    @property
    def key(self) -> str:
        """Batch key: rows with equal keys may share batches.

        Thresholds and plans belong to each row, so the key excludes them.
        """
        cache = f"{self.cache}-{self.depth}" if self.depth > 1 else self.cache
        parts = "+".join(part for part in (self.eight_bit, cache) if part)
        return ",".join(part for part in ("guided in part" * bool(self.guidance), parts) if part)

    @property
    def cache(self) -> CacheKind | None:
        """Kind of the step cache."""
        return self.step_cache.kind if self.step_cache else None

    @property
    def depth(self) -> int:
        """Number of earlier full steps that a planned cache uses; 0: no planned cache."""
        return self.step_cache.depth if isinstance(self.step_cache, PlannedCache) else 0

    def guided(self, steps: int) -> list[bool]:
        """Return for each step whether the preset guides it. Applies to requests with guidance."""
        return [
            self.guidance is None or self.guidance.includes(step, steps) for step in range(steps)
        ]

    def thresholds(self, step_kinds: Sequence[Hashable]) -> list[float]:
        """Return the threshold of each step; 0 forces a full step.

        The first step, the last step and the first step of each step kind run in full: cached
        residuals of another network or prompt do not apply.
        """
        if not isinstance(self.step_cache, StepCache):
            return [0.0] * len(step_kinds)
        changes = self.step_kind_changes(step_kinds)
        may_reuse = [
            not is_changed and 0 < i < len(step_kinds) - 1 for i, is_changed in enumerate(changes)
        ]
        return [self.step_cache.threshold if is_allowed else 0.0 for is_allowed in may_reuse]

    def weights(self, step_kinds: Sequence[Hashable]) -> list[Weights]:
        """Return each step's weights of earlier residuals; empty tuples without a plan."""
        if not isinstance(self.step_cache, PlannedCache):
            return [()] * len(step_kinds)
        return self.step_cache.weights(self.step_kind_changes(step_kinds))

    @staticmethod
    def step_kind_changes(step_kinds: Sequence[Hashable]) -> list[bool]:
        """Return for each step whether its kind differs from that of the step before."""
        return [False, *(a != b for a, b in itertools.pairwise(step_kinds))][: len(step_kinds)]


PRESETS: Mapping[str, Quality] = MappingProxyType(
    {
        "high": Quality(
            guidance=GuidanceInterval(stop=0.8),
            step_cache=StepCache(kind="first-block", threshold=0.1),
        ),
        "fast": Quality(
            guidance=GuidanceInterval(stop=0.6),
            step_cache=StepCache(kind="first-block", threshold=0.2),
        ),
        "guidance-interval": Quality(guidance=GuidanceInterval(stop=0.6)),
        "first-block-cache": Quality(step_cache=StepCache(kind="first-block", threshold=0.1)),
        "teacache": Quality(step_cache=StepCache(kind="teacache", threshold=0.15)),
        **{name: Quality(eight_bit=products) for products, name in EIGHT_BIT_PRESETS.items()},
    }
)
"""Built-in presets: two combinations, and each optimization alone. A family gets the optimizations
that it supports. docs/performance/quality.md lists their costs."""


def presets(
    optimizations: Collection[Optimization],
    *given: Mapping[str, Quality],
) -> dict[str, Quality]:
    """Return the presets of a model.

    Built-in presets are reduced to the supported optimizations. Given presets follow, and later
    presets replace earlier ones of the same name.

    Raises: OptionError: a given preset has an unsupported optimization, or a name that requests
        cannot use.
    """
    supported = {name: preset.restricted_to(optimizations) for name, preset in PRESETS.items()}
    result = {name: preset for name, preset in supported.items() if preset.optimizations}
    for name, preset in ((n, p) for mapping in given for n, p in mapping.items()):
        if missing := sorted(preset.optimizations - set(optimizations)):
            has = ", ".join(sorted(optimizations)) or "none"
            hint = '; set eight_bit = "beside" to enable it' if "eight_bit" in missing else ""
            raise OptionError(
                f"quality.{name}", f"uses {', '.join(missing)}; this model supports: {has}{hint}"
            )
        if not (name and name.isprintable() and name == name.strip() and len(name) <= LONGEST_NAME):
            raise OptionError(
                "quality",
                f"{name!r} is not a valid name of a preset; use 1 to {LONGEST_NAME} "
                "printable characters without leading or trailing spaces",
            )
        if name == EXACT:
            raise OptionError(
                f"quality.{EXACT}",
                "is reserved for images without optimizations; use another name",
            )
        result[name] = preset
    return result


NEWER = frozenset({"measured", "progressive"})
"""Fields of a serialized preset that the previous release cannot read."""


def for_previous_release(presets: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return serialized presets in the format of the previous release.

    Planned caches, progressive sizes and measurements are removed.
    """
    return {
        name: {key: value for key, value in preset.items() if key not in NEWER}
        for name, preset in presets.items()
        if (preset.get("step_cache") or {}).get("kind") != "planned"
        and not preset.get("progressive")
    }
