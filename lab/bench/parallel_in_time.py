"""Gain of running several steps of an image in parallel: `python -m lab.bench.parallel_in_time`.

Steps of a window are rows of one batch. Each starts from a guess of its predecessor's result and
repeats until the guesses hold (Shih et al. 2023, "Parallel Sampling of Diffusion Models", algorithm
1). Prints how many rounds replace how many steps, where a round takes one step's wall time if every
row has its own device; their cost on one device; and the image's PSNR. See decision 45.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import jax
import numpy as np

from deploy.bench.machine import machine, versions
from deploy.cli.options import count
from lab.demo.training.images import ImageSubject
from models import registry
from models.interface.pipeline import Pipeline, PyTree, Step, stack_rows
from models.spec.quality_presets import EXACT
from workers.media.psnr import psnr_db

DEMO = Path(__file__).resolve().parents[2] / "models" / "demo"
MODELS = ("flux", "sdxl")

Field = Callable[[int, Sequence[np.ndarray]], list[np.ndarray]]
"""Function of (first step, latents before it and before the following steps) that returns the
latents after each."""


@dataclass(frozen=True)
class ParallelResult:
    """Latents after the last step, and the work they took."""

    latents: np.ndarray
    rounds: int
    evaluations: int
    """Steps of all rounds, without the padding of the last windows."""


def in_parallel(
    start: np.ndarray, steps: int, window: int, tolerance: float, run: Field
) -> ParallelResult:
    """Denoise in rounds of `window` parallel steps.

    The window moves past its first step, whose input is final, and past each following step whose
    input changed by at most `tolerance` (root mean square). New steps of the window start from
    guesses that repeat the last step's change.
    """
    guesses = [start] * (steps + 1)
    done, rounds, evaluations = 0, 0, 0
    while done < steps:
        end = min(done + window, steps)
        changes = [
            after - guesses[done + offset]
            for offset, after in enumerate(run(done, guesses[done:end]))
        ]
        results = guesses[done] + np.cumsum(changes, axis=0)
        differences = results - np.stack(guesses[done + 1 : end + 1])
        errors = np.sqrt(np.mean(differences.reshape(len(differences), -1) ** 2, axis=1))
        converged = int(np.argmax(np.append(errors, np.inf) > tolerance))
        guesses[done + 1 : end + 1] = list(results)
        rounds, evaluations = rounds + 1, evaluations + end - done
        done += min(converged + 1, end - done)
        for offset in range(end, min(done + window, steps)):
            guesses[offset + 1] = guesses[offset] + changes[-1]
    return ParallelResult(guesses[steps], rounds, evaluations)


class Programs:
    """Compiled programs of a model."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.encode = partial(jax.jit(pipeline.encode), pipeline.weights)
        self.decode = partial(jax.jit(pipeline.decode), pipeline.weights)
        step = jax.jit(pipeline.step, static_argnums=0)
        self.step = lambda program, rows, values: step(program, pipeline.weights, rows, values)


class Steps:
    """Steps of a prepared image, for a model whose solver state is only the latents."""

    def __init__(self, programs: Programs, fields: Mapping[str, Any]) -> None:
        self._programs = programs
        prepared = programs.pipeline.prepare(fields, {})
        self.steps: Sequence[Step] = prepared.steps
        (self._program,) = {step.program for step in self.steps}
        self._row: PyTree = programs.encode(dict(prepared.inputs))
        assert not jax.tree.leaves(self._row["history"]), "its solver looks back"

    @property
    def start(self) -> np.ndarray:
        """Latents before the first step."""
        return np.asarray(self._row["latents"])

    def run(self, window: int, first: int, before: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run steps as rows of a batch of `window`; the last step repeats as padding."""
        offsets = [*range(len(before)), *[len(before) - 1] * (window - len(before))]
        rows = stack_rows([{**self._row, "latents": before[offset]} for offset in offsets])
        step_values = [self.steps[first + offset].values for offset in offsets]
        values = {
            name: np.stack([np.asarray(step_value[name], np.float32) for step_value in step_values])
            for name in step_values[0]
        }
        after = self._programs.step(self._program, rows, values)
        return list(np.asarray(after["latents"])[: len(before)])

    def sequential(self) -> np.ndarray:
        """Return the latents after all steps in sequence."""
        latents = self.start
        for number in range(len(self.steps)):
            (latents,) = self.run(1, number, [latents])
        return latents

    def pixels(self, latents: np.ndarray) -> np.ndarray:
        """Decode latents."""
        return np.asarray(self._programs.decode({**self._row, "latents": latents}))


@dataclass(frozen=True)
class Gain:
    """Gain of an image."""

    by_rounds: float
    evaluations: float
    """Steps of all rows relative to the sequential steps."""
    time: float
    """Wall time on this machine relative to the sequential steps."""
    psnr_db: float


def gain(steps: Steps, window: int, tolerance: float) -> Gain:
    """Denoise an image both ways in sequence, after compilation."""
    run = partial(steps.run, window)
    steps.run(1, 0, [steps.start])
    run(0, [steps.start] * window)
    started_s = time.perf_counter()
    sequential = steps.sequential()
    switched_s = time.perf_counter()
    parallel = in_parallel(steps.start, len(steps.steps), window, tolerance, run)
    parallel_s, sequential_s = time.perf_counter() - switched_s, switched_s - started_s
    return Gain(
        len(steps.steps) / parallel.rounds,
        parallel.evaluations / len(steps.steps),
        parallel_s / sequential_s,
        psnr_db(steps.pixels(parallel.latents), steps.pixels(sequential)),
    )


def main() -> None:
    """Print a row of a Markdown table for each model, window and tolerance."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--pictures", type=count, default=8, help="of each model (8)")
    parser.add_argument("--steps", type=count, default=28)
    parser.add_argument("--windows", type=count, nargs="+", default=[2, 4, 8])
    parser.add_argument("--tolerances", type=float, nargs="+", default=[0.03, 0.01, 0.003])
    args = parser.parse_args()
    print(f"{machine()['processor']}; float32; {versions()}\n", flush=True)
    columns = ("model", "window", "tolerance", "rounds", "steps drawn", "time here", "PSNR, median")
    print(f"| {' | '.join(columns)} | worst |\n{'|---' * (len(columns) + 1)}|")
    prompts = next(iter(ImageSubject().exams().values()))[: args.pictures]
    for name in args.models:
        programs = Programs(registry.load(name, str(DEMO / name), "float32", {}))
        fields = {**programs.pipeline.spec.defaults, "num_images": 1, "quality": EXACT}
        fields["num_inference_steps"] = args.steps
        images = [
            Steps(programs, {**fields, "prompt": prompt, "seed": seed})
            for seed, prompt in enumerate(prompts)
        ]
        for window in args.windows:
            for tolerance in args.tolerances:
                print(_row(name, window, tolerance, images), flush=True)


def _row(name: str, window: int, tolerance: float, images: Sequence[Steps]) -> str:
    gains = [gain(gain_, window, tolerance) for gain_ in images]
    cells = (
        f"{name}-demo",
        str(window),
        f"{tolerance:g}",
        f"1 / {median(gain_.by_rounds for gain_ in gains):.2f}",
        f"{median(gain_.evaluations for gain_ in gains):.2f}",
        f"{median(gain_.time for gain_ in gains):.2f}",
        f"{median(gain_.psnr_db for gain_ in gains):.1f} dB",
        f"{min(gain_.psnr_db for gain_ in gains):.1f} dB",
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
