"""Calibration of one model: plans by recorded residuals, each then measured by drawing with it."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from models.checkpoint.presets_file import PLANNED
from models.interface.pipeline import Fields
from models.nn.layers.step_cache import PLANNED as PLANNED_INPUT
from models.spec.quality_presets import EXACT, GuidanceInterval, Quality
from workers.calibration.drawing import Drawer, Drawing
from workers.calibration.frontier import Figures, frontier, promising
from workers.calibration.record import every_step_whole, record
from workers.calibration.search import METHODS, StepRecording, best_plans, numbers_of_whole_steps
from workers.programs import warmup

log = logging.getLogger(__name__)

STOPS = (1.0, 0.75, 0.5)
"""Shares of the steps that are guided, where guidance is a lever and a request has any."""
FIRST_LOOK = 2
"""Images that every candidate draws; those that they do not rule out draw all."""
TRIED = "tried"
"""Name of the preset that is drawn with."""


class NothingToPlan(Exception):
    """Error of a model without the levers that plans need."""


@dataclass(frozen=True)
class Calibrated:
    """Presets of a model with their figures, fastest first."""

    presets: Mapping[str, Quality]
    candidates: int
    """Presets that were tried."""


class Calibration:
    """Calibration of a drawer's model by one set of requests, all of as many steps."""

    def __init__(self, drawer: Drawer, requests: Sequence[Fields], about: str) -> None:
        self._drawer, self._requests, self._about = drawer, requests, about
        prepared, _ = warmup.stood_in(drawer.pipeline, {**requests[0], "quality": EXACT})
        self._phases = [step.phase for step in prepared.steps]
        self._exact: list[Drawing] = []

    def run(self) -> Calibrated:
        """Find presets, and measure these and the model's own.

        Raises: NothingToPlan: the model has no step cache.
        """
        spec = self._drawer.pipeline.spec
        if not spec.has_exact:
            raise NothingToPlan(f"{spec.name} has no exact images to hold plans against")
        own = {name: one for name, one in spec.qualities.items() if not name.startswith(PLANNED)}
        if not self._keeps_residuals():
            raise NothingToPlan(f"{spec.name} has no step cache, so there is nothing to plan")
        log.info("drawing %d requests exactly", len(self._requests))
        self._exact = [self._drawer({**one, "quality": EXACT}) for one in self._requests]
        recording = record(self._drawer, self._as(every_step_whole(self.steps)))
        candidates = {str(number): one for number, one in enumerate(self._candidates(recording))}
        found = self._measured(candidates, FIRST_LOOK)
        kept = promising(found)
        log.info("%d of %d candidates are left after a first look", len(kept), len(candidates))
        if len(self._requests) > FIRST_LOOK:
            found = self._measured({name: candidates[name] for name in kept})
        chosen = frontier({name: found[name] for name in kept})
        planned = {name: self._told(candidates[key], found[key]) for name, key in chosen.items()}
        figures = self._measured(own)
        return Calibrated(
            {**planned, **{name: self._told(own[name], figures[name]) for name in own}},
            len(candidates),
        )

    def _keeps_residuals(self) -> bool:
        """Return whether steps of the model may be left out by a plan."""
        first, *_ = self._as(every_step_whole(self.steps))
        prepared, _ = warmup.stood_in(self._drawer.pipeline, first)
        _, _, tokens, _ = prepared.inputs[PLANNED_INPUT].shape
        return tokens > 0

    @property
    def steps(self) -> int:
        """Number of steps of each image."""
        return len(self._phases)

    def _candidates(self, recording: StepRecording) -> Iterator[Quality]:
        """Yield the presets to try: for each interval of guidance and estimate, plans by number."""
        counts = numbers_of_whole_steps(self.steps)
        for guidance, method in itertools.product(self._intervals(), METHODS):
            quality = Quality(guidance=guidance)
            plans = best_plans(recording, method, quality.turns(self._guided_by(quality)))
            for count in counts:
                if count in plans:
                    yield quality.model_copy(update={"step_cache": plans[count]})

    def _intervals(self) -> list[GuidanceInterval | None]:
        if not any(phase.guided for phase in self._phases):
            return [None]
        return [None if stop == 1 else GuidanceInterval(stop=stop) for stop in STOPS]

    def _guided_by(self, quality: Quality) -> list[object]:
        """Return the phases of the steps as a preset runs them."""
        guided = quality.guided(self.steps)
        return [
            (phase, phase.guided and one) for phase, one in zip(self._phases, guided, strict=True)
        ]

    def _measured(
        self, presets: Mapping[str, Quality], images: int | None = None
    ) -> dict[str, Figures]:
        """Draw the first images, or all, by each preset."""
        found = {}
        for name, quality in presets.items():
            drawings = [self._drawer(fields) for fields in self._as(quality)[:images]]
            found[name] = Figures.of(drawings, self._exact[:images])
            log.info(
                "%s: %.2f of the operations, %.2f of the time, %.1f dB at the worst",
                *(name, found[name].operations, found[name].time, found[name].worst_db),
            )
        return found

    def _as(self, quality: Quality) -> list[Fields]:
        """Return the requests with that preset, which the model then has."""
        pipeline = self._drawer.pipeline
        qualities = {**pipeline.spec.qualities, TRIED: quality}
        pipeline.spec = pipeline.spec.model_copy(update={"qualities": qualities})
        return [{**one, "quality": TRIED} for one in self._requests]

    def _told(self, quality: Quality, figures: Figures) -> Quality:
        return figures.on(quality, self.steps, self._about)
