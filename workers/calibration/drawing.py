"""Generation of single images with a worker's programs, with time and FLOPs of each step."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from models.interface.finite import CheckedOutput
from models.interface.image_start import latents_file
from models.interface.pipeline import Fields, Pipeline, PreparedRow, PyTree, split_sound
from models.interface.step_program import StepProgram
from models.parallel.axis_rules import Layout
from models.spec.passes import split_request
from models.spec.quality_presets import WEIGHTS
from workers.engine.batching import Batch
from workers.engine.row import Row
from workers.programs import warmup
from workers.programs.aot_cache import Executables
from workers.programs.batch_sizes import BatchSizes
from workers.programs.bucket_programs import BucketPrograms, StepKind, Values
from workers.programs.cache import ProgramCache
from workers.programs.compiler import Compiler, signature
from workers.programs.flops import step_flops
from workers.programs.launcher import OneHost

CACHE = "step_cache"
OnState = Callable[[PyTree], None]


@dataclass(frozen=True)
class GeneratedImage:
    """Generated calibration image or video, with its cost."""

    pixels: np.ndarray
    seconds: float
    """Seconds of all its steps."""
    operations: float
    """FLOPs of all its steps; skipped blocks are not counted."""


class ImageGenerator:
    """Generates images one by one; compilation is not timed.

    Seconds are wall time on accelerators, where the host waits. On CPUs they are process time,
    since other processes may run.
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

    def __call__(self, fields: Fields, on_state: OnState = lambda state: None) -> GeneratedImage:
        """Generate a request's image; its input images are replaced by placeholders.

        Args:
            on_state: called with the row's state before the first step and after each step.

        Raises: RequestError: the model rejects the request.
        """
        prepared, images = warmup.prepare_with_stand_ins(self.pipeline, fields)
        row, seconds, operations = self._denoise(prepared, on_state)
        if split := split_request(fields, self.pipeline.spec):
            images = {**images, "image": self._estimate(row)}
            row, *more = self._denoise(self.pipeline.prepare(split[1], images), on_state)
            seconds, operations = seconds + more[0], operations + more[1]
        return GeneratedImage(self._decoded(row.programs, row.state), seconds, operations)

    def _denoise(self, prepared: PreparedRow, on_state: OnState) -> tuple[Row, float, float]:
        """Run a denoising pass; return its row with the seconds and FLOPs of its steps."""
        programs = self._compiled(prepared)
        encode = programs.encoders[signature(prepared.inputs)].result()
        state = self._launcher.wait(encode(self._compiler.weights.common, dict(prepared.inputs)))
        row = Row(programs, prepared.steps, state, lambda row: None, lambda row, failure: None)
        on_state(state)
        seconds, operations = 0.0, 0.0
        while not row.all_sent:
            step, step_kind = row.next_step, row.step_kind
            after, took_s = self._step(row)
            seconds += took_s
            left_out = is_left_out(step.values, after)
            operations += self._count(programs, step_kind, step.values, left_out)
            row.send(after, 0)
            on_state(after)
        return row, seconds, operations

    def _estimate(self, row: Row) -> bytes:
        """Return a row's estimate of its clean latents as a file, the next pass's input."""
        shapes, denoised = row.programs.row.result(), self._launcher.fetch(row.state["denoised"])
        latents = self.pipeline.spatial({**shapes, "latents": jnp.asarray(denoised)})
        return latents_file(np.asarray(latents))

    def fetch(self, leaf: jax.Array) -> np.ndarray:
        """Copy a device array to the host as float32."""
        return np.asarray(self._launcher.fetch(leaf), np.float32)

    def close(self) -> None:
        """Stop the compiler's threads; nothing can be generated afterwards."""
        self._programs.close()

    def _compiled(self, prepared: PreparedRow) -> BucketPrograms:
        """Return a request's programs after all are compiled; compiling would distort CPU time."""
        programs = self._programs.of(prepared)
        for needed in programs.necessary():
            needed.result()
        return programs

    def _step(self, row: Row) -> tuple[PyTree, float]:
        """Run the row's next step; return the new state and its seconds."""
        weights = self._compiler.weights.load_expert(row.step_kind.expert)
        batch = Batch(row.step_kind, (row,), row.step_kind.smallest)
        started = self._now()
        (after, *_), digests = batch.run(weights)
        self._launcher.fetch(digests)
        return after, self._now() - started

    def _decoded(self, programs: BucketPrograms, state: PyTree) -> np.ndarray:
        decode, weights = programs.decode.result(), self._compiler.weights.common
        shown: CheckedOutput = self._launcher.fetch(decode(weights, state))
        return np.asarray(split_sound(shown.decoded)[0])

    def _count(
        self, programs: BucketPrograms, step_kind: StepKind, values: Values, left_out: bool
    ) -> float:
        """Return the FLOPs of one row's denoising step, memoized."""
        key = programs.bucket, step_kind.program, left_out
        if key not in self._operations:
            weights, row = self._compiler.weights, programs.row.result()
            self._operations[key] = step_flops(
                self.pipeline, weights, step_kind.program, values, row, least=left_out
            )
        return self._operations[key]


def is_left_out(values: Mapping[str, Any], after: PyTree) -> bool:
    """Return whether a step skipped most blocks, given the state after it."""
    if CACHE not in after:
        return False
    if WEIGHTS in values:
        return bool(np.any(values[WEIGHTS]))
    return float(after[CACHE]["distance"]) > 0


def requests(pipeline: Pipeline, prompts: Sequence[str], given: Fields) -> list[Fields]:
    """Return a calibration request for each prompt, each with a different seed."""
    entries = [{**given, "prompt": prompt, "seed": seed} for seed, prompt in enumerate(prompts)]
    return warmup.requests(pipeline.spec, entries)
