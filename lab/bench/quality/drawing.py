"""Images of a model with several presets: time of the steps, and PSNR."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import jax
import numpy as np

from models.interface.image_start import latents_file
from models.interface.pipeline import Pipeline, PyTree, Step, stack_rows
from models.interface.step_program import StepProgram
from models.spec.passes import split_request
from models.spec.quality_presets import EXACT
from workers.calibration.drawing import is_left_out
from workers.media.psnr import psnr_db

NO_MOTION: dict[str, str | bool] = {"xla_disable_hlo_passes": "while-loop-invariant-code-motion"}
"""XLA's CPU compiler casts the weights of all layers before the loop over layers if stored and used
dtypes differ; Wan 1.3B would take 8.4 GB instead of 3."""

Result = Callable[[PyTree, PyTree], np.ndarray]
"""Function of (row before the first step, row after the last) that returns the compared array."""


@dataclass(frozen=True)
class GeneratedImage:
    result: np.ndarray
    seconds: float
    """Processor seconds of all steps, independent of other load on the machine."""
    left_out: float
    """Share of the steps that skipped most blocks."""


class ImageGenerator:
    """Generates images of one shape, one at a time; compilation is not timed."""

    def __init__(self, pipeline: Pipeline, result: Result | None = None) -> None:
        """Args: result: default: the pixels."""
        self.pipeline = pipeline
        self._encode, self._decode = jax.jit(pipeline.encode), jax.jit(pipeline.decode)
        self._result = result or self._pixels
        self._steps: dict[Any, Any] = {}

    def __call__(self, fields: Mapping[str, Any]) -> GeneratedImage:
        two = split_request(fields, self.pipeline.spec)
        first, row, seconds, left_out = self._drawn(two[0] if two else fields, {})
        if two:
            estimate = self.pipeline.spatial({**row, "latents": row["denoised"]})
            images = {"image": latents_file(np.asarray(estimate))}
            first, row, *more = self._drawn(two[1], images)
            seconds, left_out = seconds + more[0], left_out + more[1]
        return GeneratedImage(self._result(first, row), seconds, float(np.mean(left_out)))

    def _drawn(
        self, fields: Mapping[str, Any], images: Mapping[str, bytes]
    ) -> tuple[PyTree, PyTree, float, list[bool]]:
        """Run a request; returns the row before and after its steps, their seconds, and which were
        skipped."""
        prepared = self.pipeline.prepare(fields, images)
        first = row = self._encode(self.pipeline.weights, dict(prepared.inputs))
        programs = [self._program(step, row) for step in prepared.steps]
        left_out, started = [], time.process_time()
        for step, program in zip(prepared.steps, programs, strict=True):
            row = program(self.pipeline.weights, row, _values(step))
            left_out.append(is_left_out(step.values, row))
        jax.block_until_ready(row)
        return first, row, time.process_time() - started, left_out

    def _pixels(self, first: PyTree, row: PyTree) -> np.ndarray:
        return np.asarray(self._decode(self.pipeline.weights, row))

    def _program(self, step: Step, row: PyTree) -> Any:
        shapes = tuple(leaf.shape for leaf in jax.tree.leaves(row))
        key = (
            step.program,
            jax.tree.structure(row),
            shapes,
        )  # planned caches look back by different distances
        if key not in self._steps:
            program = jax.jit(partial(one_step, self.pipeline, step.program))
            lowered = program.lower(self.pipeline.weights, row, _values(step))
            self._steps[key] = lowered.compile(NO_MOTION)
        return self._steps[key]


def one_step(
    pipeline: Pipeline, program: StepProgram, weights: PyTree, row: PyTree, values: Any
) -> PyTree:
    after = pipeline.step(program, weights, stack_rows([row]), values)
    return jax.tree.map(lambda leaf: leaf[0], after)


def _values(step: Step) -> dict[str, np.ndarray]:
    return {name: np.asarray(value, np.float32)[None] for name, value in step.values.items()}


@dataclass(frozen=True)
class Cost:
    """Cost and quality of a preset over many images."""

    psnr_db: float
    worst_db: float
    time: float
    """Median time of the steps relative to the exact steps of the same image."""
    left_out: float


def drawn(
    generator: ImageGenerator, requests: Iterable[Mapping[str, Any]], presets: Sequence[str]
) -> dict[str, list[GeneratedImage]]:
    """Drawings by preset, `exact` first. Presets take turns for every image, so that other load of
    the machine affects all of them."""
    by_preset: dict[str, list[GeneratedImage]] = {name: [] for name in (EXACT, *presets)}
    for request in requests:
        for name, drawings in by_preset.items():
            drawings.append(generator({**request, "quality": name}))
            print(f"{name}: {drawings[-1].seconds:.1f} s", file=sys.stderr, flush=True)
    return by_preset


def cost(
    drawings: Sequence[GeneratedImage],
    exact: Sequence[GeneratedImage],
    near_db: Callable[[np.ndarray, np.ndarray], float] = psnr_db,
) -> Cost:
    """Compare drawings with the exact ones. Args: near_db: PSNR of (result, exact result)."""
    pairs = list(zip(drawings, exact, strict=True))
    near = [near_db(drawing.result, other.result) for drawing, other in pairs]
    return Cost(
        median(near),
        min(near),
        median(drawing.seconds / other.seconds for drawing, other in pairs),
        float(np.mean([drawing.left_out for drawing in drawings])),
    )
