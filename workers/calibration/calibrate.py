"""Calibration of one model: record residuals of exact steps, search for plans, measure them.

The candidates on the Pareto frontier of time and quality are kept.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from models.checkpoint.presets_file import PLANNED
from models.interface.pipeline import Fields, PyTree
from models.nn.layers.step_cache import PLANNED_CACHE_KEY as PLANNED_INPUT
from models.spec.quality_presets import EXACT, GuidanceInterval, Measured, Quality
from models.spec.step_plan import PlannedCache, StepPlan
from workers.calibration.drawing import CACHE, GeneratedImage, ImageGenerator
from workers.calibration.search import (
    METHODS,
    Method,
    StepRecording,
    best_plans,
    numbers_of_whole_steps,
)
from workers.media.psnr import psnr_db
from workers.programs import warmup

MIN_DB = 15.0
"""Lowest acceptable PSNR: below it, the image is no longer recognizable."""
SLACK_DB = 1.5
"""Tolerated distance from the frontier when few images are measured."""
NEARER_DB, FASTER = 0.5, 0.95
"""Smallest differences that justify a separate preset: PSNR in dB, or ratio of FLOPs."""


@dataclass(frozen=True)
class Figures:
    """Measurements of one preset over the same images: PSNR and cost."""

    psnr_db: tuple[float, ...]
    operations: float
    """Mean share of an exact image's FLOPs."""
    time: float
    """Median share of an exact image's time."""

    @classmethod
    def of(cls, drawings: Sequence[GeneratedImage], exact: Sequence[GeneratedImage]) -> Figures:
        """Compare a preset's images with the exact images of the same requests."""
        pairs = list(zip(drawings, exact, strict=True))
        return cls(
            tuple(psnr_db(drawing.pixels, reference.pixels) for drawing, reference in pairs),
            float(
                np.mean([drawing.operations / reference.operations for drawing, reference in pairs])
            ),
            median(drawing.seconds / reference.seconds for drawing, reference in pairs),
        )

    @property
    def worst_db(self) -> float:
        """PSNR of the image that differs most from the exact one."""
        return min(self.psnr_db)

    def on(self, quality: Quality, steps: int, about: str) -> Quality:
        """Return a quality preset with these measurements added."""
        measured = Measured(
            steps=steps,
            images=len(self.psnr_db),
            worst_db=math.floor(10 * self.worst_db) / 10,
            operations=round(self.operations, 3),
            time=round(self.time, 3),
        )
        return quality.model_copy(
            update={
                "psnr_db": round(median(self.psnr_db), 1),
                "measured": measured,
                "about": about,
            }
        )


def promising(candidates: Mapping[str, Figures]) -> list[str]:
    """Return the names of presets that may be on the quality-speed frontier, fastest first."""
    names, best_db = [], MIN_DB
    for name in sorted(candidates, key=lambda name: candidates[name].operations):
        if candidates[name].worst_db > best_db - SLACK_DB:
            names.append(name)
        best_db = max(best_db, candidates[name].worst_db)
    return names


def frontier(candidates: Mapping[str, Figures]) -> dict[str, str]:
    """Return the presets on the quality-speed frontier, fastest first, by their new names."""
    chosen: list[str] = []
    for name in sorted(
        candidates, key=lambda name: (candidates[name].operations, -candidates[name].worst_db)
    ):
        figures = candidates[name]
        if figures.worst_db < MIN_DB or figures.operations >= 1:
            continue
        if not chosen:
            chosen.append(name)
            continue
        last = candidates[chosen[-1]]
        if figures.worst_db < last.worst_db + NEARER_DB:
            continue
        if last.operations > FASTER * figures.operations:
            chosen.pop()  # slightly faster and less accurate
        chosen.append(name)
    return {f"{PLANNED}{1 / candidates[name].operations:.2f}x": name for name in chosen}


MAX_TOKENS = 1024
"""Maximum number of a residual's tokens to record, evenly spaced: enough for inner products."""


def every_step_whole(steps: int) -> Quality:
    """Return the preset that stores residuals and skips no step."""
    plan = PlannedCache(kind="planned", steps=steps, whole=tuple(range(steps)))
    return Quality(step_cache=plan)


def record(generator: ImageGenerator, requests: Sequence[Fields]) -> StepRecording:
    """Generate requests whose preset is `every_step_whole`, and record their steps."""
    watches = [_Watch(generator) for _ in requests]
    for watch, fields in zip(watches, requests, strict=True):
        generator(fields, watch)
    return StepRecording(
        np.stack([watch.products for watch in watches]),
        np.stack([watch.moves for watch in watches]),
    )


class _Watch:
    """Observer that collects one image's block residuals and latents, step by step."""

    def __init__(self, generator: ImageGenerator) -> None:
        self._generator = generator
        self._residuals: list[np.ndarray] = []
        self._latents: list[np.ndarray] = []

    def __call__(self, state: PyTree) -> None:
        residual = state[CACHE]["residual"]
        chosen = residual[:, :: -(-residual.shape[1] // MAX_TOKENS)]
        self._latents.append(self._generator.fetch(state["latents"]))
        if len(self._latents) > 1:
            self._residuals.append(self._generator.fetch(chosen).ravel())

    @property
    def products(self) -> np.ndarray:
        """Inner products of all pairs of steps' residuals."""
        residuals = np.stack(self._residuals).astype(np.float64)
        return residuals @ residuals.T

    @property
    def moves(self) -> np.ndarray:
        """Norm of each step's change of the latents."""
        return np.array([np.linalg.norm(step) for step in np.diff(np.stack(self._latents), axis=0)])


log = logging.getLogger(__name__)

STOPS = (1.0, 0.75, 0.5)
"""Shares of the steps with guidance to try, for a model and requests that use guidance."""
SCREENING_IMAGES = 2
"""Number of images that every candidate generates. Promising candidates generate all."""
TRIED = "tried"
"""Name of the temporary preset under measurement."""


class NothingToPlan(Exception):
    """Error of a model without a step cache or exact images, which plans need."""


@dataclass(frozen=True)
class CalibrationResult:
    """Presets of a model with their measurements, fastest first."""

    presets: Mapping[str, Quality]
    candidates: int
    """Number of presets tried."""


class Calibration:
    """Calibration of a model's presets, on a set of requests with equal numbers of steps."""

    def __init__(self, generator: ImageGenerator, requests: Sequence[Fields], about: str) -> None:
        self._generator, self._requests, self._about = generator, requests, about
        prepared, _ = warmup.prepare_with_stand_ins(
            generator.pipeline, {**requests[0], "quality": EXACT}
        )
        self._step_programs = [step.program for step in prepared.steps]
        self._exact: list[GeneratedImage] = []

    def run(self) -> CalibrationResult:
        """Search for presets, and measure them and the model's existing presets.

        Raises: NothingToPlan: the model has no step cache.
        """
        spec = self._generator.pipeline.spec
        if not spec.has_exact:
            raise NothingToPlan(f"{spec.name} has no exact images to compare plans with")
        existing = {
            name: item for name, item in spec.qualities.items() if not name.startswith(PLANNED)
        }
        if not self._keeps_residuals():
            raise NothingToPlan(f"{spec.name} has no step cache, so there is nothing to plan")
        log.info("generating %d requests exactly", len(self._requests))
        self._exact = [self._generator({**item, "quality": EXACT}) for item in self._requests]
        recording = record(self._generator, self._as(every_step_whole(self.steps)))
        candidates = {str(number): item for number, item in enumerate(self._candidates(recording))}
        figures_by_name = self._measured(candidates, SCREENING_IMAGES)
        promising_names = promising(figures_by_name)
        log.info(
            "%d of %d candidates remain after the first images",
            len(promising_names),
            len(candidates),
        )
        if len(self._requests) > SCREENING_IMAGES:
            figures_by_name = self._measured({name: candidates[name] for name in promising_names})
        chosen = frontier({name: figures_by_name[name] for name in promising_names})
        planned = {
            name: self._with_figures(candidates[key], figures_by_name[key])
            for name, key in chosen.items()
        }
        existing_figures = self._measured(existing)
        return CalibrationResult(
            {
                **planned,
                **{
                    name: self._with_figures(existing[name], existing_figures[name])
                    for name in existing
                },
            },
            len(candidates),
        )

    def extended(self, presets: Mapping[str, Quality]) -> dict[str, Quality]:
        """Add plans for this set's number of steps to the calibrated presets.

        Each has the estimate and the share of full steps of its preset, whose figures are kept.
        """
        recording = record(self._generator, self._as(every_step_whole(self.steps)))
        return {name: self._extended(preset, recording) for name, preset in presets.items()}

    def _extended(self, preset: Quality, recording: StepRecording) -> Quality:
        cache = preset.step_cache
        if not isinstance(cache, PlannedCache) or self.steps in cache.step_counts:
            return preset
        changes = preset.step_kind_changes(self._guided_by(preset))
        plans = best_plans(recording, Method(cache.estimate, cache.order), changes)
        wanted = len(cache.whole) * self.steps / cache.steps
        plan = plans[min(plans, key=lambda count: abs(count - wanted))]
        other = StepPlan(steps=plan.steps, whole=plan.whole, magnitudes=plan.magnitudes)
        extended = cache.model_copy(update={"others": (*cache.others, other)})
        return preset.model_copy(update={"step_cache": extended})

    def _keeps_residuals(self) -> bool:
        """Return whether the model stores residuals, so that plans can skip steps."""
        first, *_ = self._as(every_step_whole(self.steps))
        prepared, _ = warmup.prepare_with_stand_ins(self._generator.pipeline, first)
        _, _, tokens, _ = prepared.inputs[PLANNED_INPUT].shape
        return bool(tokens > 0)

    @property
    def steps(self) -> int:
        """Number of denoising steps of each calibration image."""
        return len(self._step_programs)

    def _candidates(self, recording: StepRecording) -> Iterator[Quality]:
        """Yield presets to try: a plan per guidance interval, estimate and number of full steps."""
        counts = numbers_of_whole_steps(self.steps)
        for guidance, method in itertools.product(self._intervals(), METHODS):
            quality = Quality(guidance=guidance)
            plans = best_plans(
                recording, method, quality.step_kind_changes(self._guided_by(quality))
            )
            for count in counts:
                if count in plans:
                    yield quality.model_copy(update={"step_cache": plans[count]})

    def _intervals(self) -> list[GuidanceInterval | None]:
        if not any(step_program.guided for step_program in self._step_programs):
            return [None]
        return [None if stop == 1 else GuidanceInterval(stop=stop) for stop in STOPS]

    def _guided_by(self, quality: Quality) -> list[object]:
        """Return the step program and guidance of each step under a preset."""
        guided = quality.guided(self.steps)
        return [
            (step_program, step_program.guided and is_guided)
            for step_program, is_guided in zip(self._step_programs, guided, strict=True)
        ]

    def _measured(
        self, presets: Mapping[str, Quality], images: int | None = None
    ) -> dict[str, Figures]:
        """Measure presets on the first `images` requests, or on all."""
        figures = {}
        for name, quality in presets.items():
            drawings = [self._generator(fields) for fields in self._as(quality)[:images]]
            figures[name] = Figures.of(drawings, self._exact[:images])
            log.info(
                "%s: %.2f of the operations, %.2f of the time, %.1f dB at the worst",
                *(name, figures[name].operations, figures[name].time, figures[name].worst_db),
            )
        return figures

    def _as(self, quality: Quality) -> list[Fields]:
        """Set a preset as `TRIED` on the model, and return the calibration requests with it."""
        pipeline = self._generator.pipeline
        qualities = {**pipeline.spec.qualities, TRIED: quality}
        pipeline.spec = pipeline.spec.model_copy(update={"qualities": qualities})
        return [{**fields, "quality": TRIED} for fields in self._requests]

    def _with_figures(self, quality: Quality, figures: Figures) -> Quality:
        return figures.on(quality, self.steps, self._about)
