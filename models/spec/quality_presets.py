"""Presets of `quality`: levers that trade a little of an image's likeness for speed. No JAX.

`exact` is the reference's image and is always there. A preset is a frozen value of levers, each
of which stands for itself. Steps outside the interval of guidance run without the negative prompt;
steps of which little would change take over the last one's work; matrix products have weights of 8
bits, with exact activations or with rounded ones; the first steps draw a smaller image.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from models.spec.frozen import Frozen
from models.spec.step_plan import PlannedCache, Weights

EXACT = "exact"
"""The preset without any lever."""
EightBit = Literal["beside", "instead"]
"""Place of 8-bit weights in a model's blocks: beside their exact ones, or instead of them."""

EightBitProducts = Literal["w8a16", "w8a8"]
"""Bits of a product's weights and activations: of weights alone, or of both. 16 stands for whatever
activations are computed in. Named as in vLLM; weight-only and dynamic quantisation elsewhere."""
OF_EIGHT_BITS: Mapping[EightBitProducts, str] = MappingProxyType(
    {"w8a16": "eight-bit-weights", "w8a8": "eight-bit"}
)
"""The presets with that lever alone."""

SignalKind = Literal["first-block", "teacache"]
CacheKind = Literal["first-block", "teacache", "planned"]
Lever = Literal["guidance", "step_cache", "planned_cache", "eight_bit", "progressive"]
"""Field of a preset; of a step cache by a plan, which families have without one by a signal, too,
`planned_cache`."""
CACHES: frozenset[Lever] = frozenset({"step_cache", "planned_cache"})
LEVERS: frozenset[Lever] = frozenset({"guidance", "eight_bit", "progressive", *CACHES})
FIELDS = frozenset({"guidance", "step_cache", "eight_bit", "progressive"})
"""Fields of a preset that change the image."""

THRESHOLD, COEFFICIENTS, WEIGHTS = "cache_threshold", "cache_coefficients", "cache_weights"
"""Values of a step that has a cache; `models.nn.layers.step_cache` reads them."""

LONGEST_NAME = 200
"""Maximum length of a preset's name, which a request may give."""

DEGREES = 5
"""Coefficients of a rescaling, the constant among them."""


class GuidanceInterval(Frozen):
    """Interval of guided steps, as shares of all of them; as diffusers' guiders have it.

    Source: Kynkäänniemi et al. 2024 (Applying Guidance in a Limited Interval).
    """

    start: float = Field(default=0.0, ge=0, le=1)
    """Share of the steps before the first guided one."""
    stop: float = Field(default=1.0, ge=0, le=1)
    """Share of the steps before the first that is not guided again."""

    @model_validator(mode="after")
    def _is_one(self) -> GuidanceInterval:
        if self.start > self.stop:
            raise ValueError(f"start {self.start} lies behind stop {self.stop}")
        return self

    def has(self, step: int, steps: int) -> bool:
        """Return whether that step is guided."""
        return int(self.start * steps) <= step < int(self.stop * steps)


class StepCache(Frozen):
    """Step cache by a signal: when a step reuses what the last whole one added to the tokens.

    `first-block`: where what the first block adds has changed by less than the threshold since
    the last whole step, relative and in the mean. `teacache`: where what goes into the first
    block, summed up over the steps since then, has.

    Source: Cheng 2024 (ParaAttention, first block cache); Liu et al. 2024 (TeaCache), eq. 4 to 7.
    """

    kind: SignalKind
    """Signal that the change is measured by."""
    threshold: float = Field(gt=0)
    """Change below which a step takes over what the last whole one added; larger is faster and
    farther from exact."""
    coefficients: tuple[float, ...] = Field(default=(1.0, 0.0), min_length=1, max_length=DEGREES)
    """Polynomial of TeaCache that rescales each change before it is summed up, the highest degree
    first; fitted to one network."""


class Progressive(Frozen):
    """Size that grows: the first steps draw a smaller image, and the others go on from that.

    Where a request has images or hires fix, all steps have its size.
    """

    scale: float = Field(gt=0, lt=1)
    """Scale of both sides in the first steps, rounded to what the model draws."""
    until: float = Field(gt=0, lt=1)
    """Share of the steps that are smaller."""


def _in_full(eight_bit: object) -> object:
    """Convert true and false, whose meaning dates from before weights could be rounded alone."""
    return {True: "w8a8", False: None}[eight_bit] if isinstance(eight_bit, bool) else eight_bit


class Measured(Frozen):
    """Figures of a preset over a calibration set, against exact images of the same requests."""

    steps: int = Field(ge=1)
    """Denoising steps of each image."""
    images: int = Field(ge=1)
    """Number of images, each of a prompt and a seed of its own."""
    worst_db: float
    """PSNR of the image that is farthest from its exact one."""
    operations: float = Field(gt=0)
    """Operations of the steps, as a share of exact ones."""
    time: float = Field(gt=0)
    """Time of the steps, as a share of exact ones', by the median: on the devices that measured."""


class Quality(Frozen):
    """A preset: which levers are pulled, and how far."""

    guidance: GuidanceInterval | None = None
    """The steps that are guided; null: all."""
    step_cache: Annotated[StepCache | PlannedCache, Field(discriminator="kind")] | None = None
    """Null: every step runs whole."""
    eight_bit: Annotated[EightBitProducts | None, BeforeValidator(_in_full)] = None
    """Precision of the blocks' matrix products: 8 bits of the weights alone (`w8a16`) or of
    activations, too (`w8a8`); int8 or, where the chip has them and no faster int8, floats. Null:
    exact."""
    progressive: Progressive | None = None
    """The first steps, which draw a smaller image; null: all have the image's size."""
    psnr_db: float | None = None
    """Median PSNR of its images against those of exact, where somebody has measured it: `about`
    says what was measured."""
    measured: Measured | None = None
    """Further figures, where `atelier calibrate` has measured them."""
    about: str = ""
    """Notes for operators and clients, such as how `psnr_db` was measured."""

    @property
    def levers(self) -> frozenset[Lever]:
        """Levers that are set."""
        cache: Lever = "planned_cache" if self.depth else "step_cache"
        pulled: dict[Lever, Any] = {
            "guidance": self.guidance,
            cache: self.step_cache,
            "eight_bit": self.eight_bit,
            "progressive": self.progressive,
        }
        return frozenset(lever for lever, how in pulled.items() if how)

    def only(self, levers: Collection[Lever]) -> Quality:
        """Return the preset with only these levers."""
        fields = {"step_cache" if lever in CACHES else lever for lever in self.levers & set(levers)}
        return Quality(**{name: getattr(self, name) for name in fields})

    @property
    def key(self) -> str:
        """Equal for rows that may share batches: thresholds and plans are each row's own."""
        cache = f"{self.cache}-{self.depth}" if self.depth > 1 else self.cache
        levers = "+".join(lever for lever in (self.eight_bit, cache) if lever)
        return ",".join(part for part in ("guided in part" * bool(self.guidance), levers) if part)

    @property
    def cache(self) -> CacheKind | None:
        """The kind of the step cache."""
        return self.step_cache.kind if self.step_cache else None

    @property
    def depth(self) -> int:
        """Number of whole steps that a plan looks back to; 0: there is none."""
        return self.step_cache.depth if isinstance(self.step_cache, PlannedCache) else 0

    def guided(self, steps: int) -> list[bool]:
        """Return for each step whether it is guided where the request has guidance at all."""
        return [self.guidance is None or self.guidance.has(step, steps) for step in range(steps)]

    def thresholds(self, phases: Sequence[Hashable]) -> list[float]:
        """Return the threshold of each step; 0 has it run whole.

        The first, the last, and those where the phase turns run whole, since what was kept is
        another network's or another prompt's then.
        """
        if not isinstance(self.step_cache, StepCache):
            return [0.0] * len(phases)
        turns = self.turns(phases)
        loose = [not turned and 0 < i < len(phases) - 1 for i, turned in enumerate(turns)]
        return [self.step_cache.threshold if may else 0.0 for may in loose]

    def weights(self, phases: Sequence[Hashable]) -> list[Weights]:
        """Return the weights by which each step estimates what it leaves out; where none: ()."""
        if not isinstance(self.step_cache, PlannedCache):
            return [()] * len(phases)
        return self.step_cache.weights(self.turns(phases))

    @staticmethod
    def turns(phases: Sequence[Hashable]) -> list[bool]:
        """Return for each step whether it is of another phase than the one before."""
        return [False, *(a != b for a, b in itertools.pairwise(phases))][: len(phases)]


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
        **{name: Quality(eight_bit=products) for products, name in OF_EIGHT_BITS.items()},
    }
)
"""Two of several levers, and every lever alone by names of its own; a family has of each what
levers it has. docs/performance/quality.md says what they cost."""


def presets(
    levers: Collection[Lever],
    *given: Mapping[str, Quality],
) -> dict[str, Quality]:
    """Return the presets of a model.

    Every family's, as far as this one has their levers, then the given ones; the last of a name
    wins.

    Raises: ValueError: a given preset pulls a lever that there is not, or has no name of its own
        that a request could give.
    """
    own = {name: preset.only(levers) for name, preset in PRESETS.items()}
    found = {name: preset for name, preset in own.items() if preset.levers}
    for name, preset in ((n, p) for some in given for n, p in some.items()):
        if missing := sorted(preset.levers - set(levers)):
            has = ", ".join(sorted(levers)) or "none"
            hint = '; eight_bit = "beside" gives it that one' if "eight_bit" in missing else ""
            raise ValueError(
                f"quality.{name} pulls {', '.join(missing)}; "
                f"the levers of this model are: {has}{hint}"
            )
        if not (name and name.isprintable() and name == name.strip() and len(name) <= LONGEST_NAME):
            raise ValueError(
                f"quality: {name!r} is no name for a preset; take one of 1 to {LONGEST_NAME} "
                "letters without spaces around them"
            )
        if name == EXACT:
            raise ValueError(f"quality.{EXACT} is the reference's own image: name it otherwise")
        found[name] = preset
    return found


NEWER = frozenset({"measured", "progressive"})
"""Fields of a written preset that the last release cannot read."""


def as_once(presets: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return written presets as a release knows them that has neither plans nor their figures.

    Nor sizes that grow.
    """
    return {
        name: {key: value for key, value in preset.items() if key not in NEWER}
        for name, preset in presets.items()
        if (preset.get("step_cache") or {}).get("kind") != "planned"
        and not preset.get("progressive")
    }
