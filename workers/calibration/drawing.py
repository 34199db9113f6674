"""Drawing of single images by the programs that a pool would run, watched step by step."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from models.interface.finite import Shown
from models.interface.image_start import latents_file
from models.interface.pipeline import Fields, Pipeline, Prepared, PyTree, parted
from models.interface.step_program import StepProgram
from models.parallel.axis_rules import Layout
from models.spec.progressive import parts
from models.spec.quality_presets import WEIGHTS
from workers.engine.batching import Batch
from workers.engine.row import Row
from workers.programs import warmup
from workers.programs.aot_cache import Executables
from workers.programs.batch_sizes import BatchSizes
from workers.programs.bucket_programs import BucketPrograms, Phase, Values
from workers.programs.cache import ProgramCache
from workers.programs.compiler import Compiler, signature
from workers.programs.flops import step_flops
from workers.programs.launcher import OneHost

CACHE = "step_cache"
OnState = Callable[[PyTree], None]


@dataclass(frozen=True)
class Drawing:
    """A drawn image or video."""

    pixels: np.ndarray
    seconds: float
    """Seconds of all its steps."""
    operations: float
    """Operations of all its steps that were not left out."""


class Drawer:
    """Draws images one after the other, each program compiled once, and not on the clock.

    Seconds are those of the clock on accelerators, whose host waits meanwhile, and the process's
    own on CPUs, where others may be at work.
    """

    def __init__(
        self, pipeline: Pipeline, layout: Layout, batching: BatchSizes, executables: Executables
    ) -> None:
        self.pipeline = pipeline
        self._launcher = OneHost()
        self._compiler = Compiler(pipeline, layout, executables)
        layouts = self._compiler.batch_layouts(batching.sizes, batching.elastic)
        self._programs = ProgramCache(self._compiler, self._launcher, layouts[:1])
        self._operations: dict[tuple[str, StepProgram, bool], float] = {}
        on_cpu = layout.mesh.devices.flat[0].platform == "cpu"
        self._now = time.process_time if on_cpu else time.perf_counter

    def __call__(self, fields: Fields, on_state: OnState = lambda state: None) -> Drawing:
        """Draw a request, images that it needs being stand-ins.

        Args:
            on_state: told of the row before the first step and after each one.

        Raises: RequestError: the model cannot make it.
        """
        prepared, images = warmup.stood_in(self.pipeline, fields)
        row, seconds, operations = self._drawn(prepared, on_state)
        if two := parts(fields, self.pipeline.spec):
            images = {**images, "image": self._estimate(row)}
            row, *more = self._drawn(self.pipeline.prepare(two[1], images), on_state)
            seconds, operations = seconds + more[0], operations + more[1]
        return Drawing(self._decoded(row.programs, row.state), seconds, operations)

    def _drawn(self, prepared: Prepared, on_state: OnState) -> tuple[Row, float, float]:
        """Draw a pass; return its row with the seconds and the operations of its steps."""
        programs = self._compiled(prepared)
        encode = programs.encoders[signature(prepared.inputs)].result()
        state = self._launcher.wait(encode(self._compiler.weights.common, dict(prepared.inputs)))
        row = Row(programs, prepared.steps, state, lambda row: None, lambda row, failure: None)
        on_state(state)
        seconds, operations = 0.0, 0.0
        while not row.all_sent:
            step, phase = row.next_step, row.phase
            after, took_s = self._step(row)
            seconds += took_s
            left_out = is_left_out(step.values, after)
            operations += self._count(programs, phase, step.values, left_out)
            row.send(after, 0)
            on_state(after)
        return row, seconds, operations

    def _estimate(self, row: Row) -> bytes:
        """Return a row's estimate of its clean latents, as the next pass begins with it."""
        shapes, denoised = row.programs.row.result(), self._launcher.fetch(row.state["denoised"])
        latents = self.pipeline.spatial({**shapes, "latents": jnp.asarray(denoised)})
        return latents_file(np.asarray(latents))

    def fetch(self, leaf: jax.Array) -> np.ndarray:
        """Bring an array to the host, as float32."""
        return np.asarray(self._launcher.fetch(leaf), np.float32)

    def close(self) -> None:
        """Compile nothing more."""
        self._programs.close()

    def _compiled(self, prepared: Prepared) -> BucketPrograms:
        """Return the programs when all are compiled: on a CPU that would be on the clock."""
        programs = self._programs.of(prepared)
        for needed in programs.necessary():
            needed.result()
        return programs

    def _step(self, row: Row) -> tuple[PyTree, float]:
        """Return the row after its next step, and the seconds that it took."""
        weights = self._compiler.weights.load_expert(row.phase.expert)
        batch = Batch(row.phase, (row,), row.phase.smallest)
        started = self._now()
        (after, *_), finite = batch.run(weights)
        self._launcher.fetch(finite)
        return after, self._now() - started

    def _decoded(self, programs: BucketPrograms, state: PyTree) -> np.ndarray:
        decode, weights = programs.decode.result(), self._compiler.weights.common
        shown: Shown = self._launcher.fetch(decode(weights, state))
        return np.asarray(parted(shown.decoded)[0])

    def _count(
        self, programs: BucketPrograms, phase: Phase, values: Values, left_out: bool
    ) -> float:
        """Return the operations of a step of one row."""
        key = programs.bucket, phase.program, left_out
        if key not in self._operations:
            weights, row = self._compiler.weights, programs.row.result()
            self._operations[key] = step_flops(
                self.pipeline, weights, phase.program, values, row, least=left_out
            )
        return self._operations[key]


def is_left_out(values: Mapping[str, Any], after: PyTree) -> bool:
    """Return whether a step did without most blocks, given the row behind it."""
    if CACHE not in after:
        return False
    if WEIGHTS in values:
        return bool(np.any(values[WEIGHTS]))
    return float(after[CACHE]["distance"]) > 0


def requests(pipeline: Pipeline, prompts: Sequence[str], given: Fields) -> list[Fields]:
    """Return a request for each prompt, each with a seed of its own."""
    entries = [{**given, "prompt": prompt, "seed": seed} for seed, prompt in enumerate(prompts)]
    return warmup.requests(pipeline.spec, entries)
