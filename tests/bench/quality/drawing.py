"""Pictures of one model by several presets: how long their steps take, and how near they are."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import jax
import numpy as np

from models.pipeline import Pipeline, PyTree, stack_rows
from models.quality import EXACT

MOST_DB = 99.0
"""Of two equal pictures, to have a number."""


@dataclass(frozen=True)
class Drawing:
    pixels: np.ndarray
    seconds: float
    """Of all its steps."""
    left_out: float
    """Share of the steps that did without most blocks."""


class Drawer:
    """Draws pictures of one shape alone, each program compiled once."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self._encode, self._decode = jax.jit(pipeline.encode), jax.jit(pipeline.decode)
        self._steps: dict[str, Any] = {}

    def __call__(self, fields: Mapping[str, Any]) -> Drawing:
        prepared = self.pipeline.prepare(fields, {})
        row = self._encode(self.pipeline.weights, dict(prepared.inputs))
        distances, started = [], time.perf_counter()
        for step in jax.block_until_ready(row) and prepared.steps:
            values = {name: np.asarray(v, np.float32)[None] for name, v in step.values.items()}
            row = self._program(step.phase)(self.pipeline.weights, row, values)
            distances += [row["step_cache"]["distance"]] if "step_cache" in row else []
        jax.block_until_ready(row)
        seconds = time.perf_counter() - started
        left_out = np.mean([float(distance) > 0 for distance in distances]) if distances else 0.0
        pixels = np.asarray(self._decode(self.pipeline.weights, row))
        return Drawing(pixels, seconds, float(left_out))

    def _program(self, phase: str) -> Any:
        if phase not in self._steps:
            self._steps[phase] = jax.jit(partial(one_step, self.pipeline, phase))
        return self._steps[phase]


def one_step(pipeline: Pipeline, phase: str, weights: PyTree, row: PyTree, values: Any) -> PyTree:
    after = pipeline.step(phase, weights, stack_rows([row]), values)
    return jax.tree.map(lambda leaf: leaf[0], after)


def psnr_db(picture: np.ndarray, other: np.ndarray) -> float:
    noise = np.mean(np.square(picture.astype(float) - other))
    return MOST_DB if noise == 0 else 10 * math.log10(255**2 / noise)


@dataclass(frozen=True)
class Cost:
    """What a preset costs and gains, over many pictures."""

    psnr_db: float
    worst_db: float
    time: float
    """Of the steps, against exact ones of the same picture: the median."""
    left_out: float
    right: float
    """Share of the pictures that show what was asked for."""


def costs(
    drawer: Drawer,
    requests: Sequence[Mapping[str, Any]],
    presets: Sequence[str],
    is_right: Any,
) -> dict[str, Cost]:
    """By preset, `exact` first. Every picture is drawn by all presets in turn, so that what else
    the machine does is spread over them."""
    names = [EXACT, *presets]
    for name in names:  # compiles
        drawer({**requests[0], "quality": name})
    drawn: dict[str, list[Drawing]] = {name: [] for name in names}
    for request in requests:
        for name in names:
            drawn[name].append(drawer({**request, "quality": name}))
    prompts = [request["prompt"] for request in requests]
    return {name: _cost(drawn[name], drawn[EXACT], prompts, is_right) for name in names}


def _cost(
    drawings: Sequence[Drawing], exact: Sequence[Drawing], prompts: Sequence[str], is_right: Any
) -> Cost:
    pairs = list(zip(drawings, exact, strict=True))
    near = [psnr_db(drawing.pixels, other.pixels) for drawing, other in pairs]
    right = [is_right(d.pixels, prompt) for d, prompt in zip(drawings, prompts, strict=True)]
    return Cost(
        median(near),
        min(near),
        median(drawing.seconds / other.seconds for drawing, other in pairs),
        float(np.mean([drawing.left_out for drawing in drawings])),
        float(np.mean(right)),
    )
