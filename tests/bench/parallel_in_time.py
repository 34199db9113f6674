"""Gain of several steps of one image at once: `python -m tests.bench.parallel_in_time`.

Steps of a window are rows of one batch, each on a guess of what comes before it, and drawn again
until the guesses hold (Shih et al. 2023, "Parallel Sampling of Diffusion Models", algorithm 1).
Prints how many rounds, each a step of wall time where every row has a device of its own, take the
place of how many steps, what they cost on one device, and how near the image is. See decision 163.
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
from models import registry
from models.demo.training.pictures import ImageSubject
from models.interface.pipeline import Pipeline, PyTree, Step, stack_rows
from models.spec.quality_presets import EXACT
from workers.media.psnr import psnr_db

DEMO = Path(__file__).resolve().parents[2] / "models" / "demo"
MODELS = ("flux", "sdxl")

Field = Callable[[int, Sequence[np.ndarray]], list[np.ndarray]]
"""(first step, latents before it and before those that follow) → latents behind each."""


@dataclass(frozen=True)
class Drawn:
    """Latents behind the last step, and what they took."""

    latents: np.ndarray
    rounds: int
    evaluations: int
    """Steps of all rounds; what pads the last windows is not counted."""


def in_parallel(start: np.ndarray, steps: int, window: int, tolerance: float, run: Field) -> Drawn:
    """Draw by rounds of `window` steps at once.

    The window moves past the first step, before which latents are known, and past those behind it
    before which they have changed by no more than `tolerance`, the root of the mean square. What is
    new in it is guessed as the last step went on.
    """
    guesses = [start] * (steps + 1)
    done, rounds, evaluations = 0, 0, 0
    while done < steps:
        end = min(done + window, steps)
        changes = [
            after - guesses[done + place]
            for place, after in enumerate(run(done, guesses[done:end]))
        ]
        behind = guesses[done] + np.cumsum(changes, axis=0)
        wrong = behind - np.stack(guesses[done + 1 : end + 1])
        errors = np.sqrt(np.mean(wrong.reshape(len(wrong), -1) ** 2, axis=1))
        held = int(np.argmax(np.append(errors, np.inf) > tolerance))
        guesses[done + 1 : end + 1] = list(behind)
        rounds, evaluations = rounds + 1, evaluations + end - done
        done += min(held + 1, end - done)
        for place in range(end, min(done + window, steps)):
            guesses[place + 1] = guesses[place] + changes[-1]
    return Drawn(guesses[steps], rounds, evaluations)


class Programs:
    """Compiled programs of a model."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.encode = partial(jax.jit(pipeline.encode), pipeline.weights)
        self.decode = partial(jax.jit(pipeline.decode), pipeline.weights)
        step = jax.jit(pipeline.step, static_argnums=0)
        self.step = lambda phase, rows, values: step(phase, pipeline.weights, rows, values)


class Steps:
    """Steps of one prepared image of a model whose solver keeps nothing but latents."""

    def __init__(self, programs: Programs, fields: Mapping[str, Any]) -> None:
        self._programs = programs
        prepared = programs.pipeline.prepare(fields, {})
        self.steps: Sequence[Step] = prepared.steps
        (self._phase,) = {step.phase for step in self.steps}
        self._row: PyTree = programs.encode(dict(prepared.inputs))
        assert not jax.tree.leaves(self._row["history"]), "its solver looks back"

    @property
    def start(self) -> np.ndarray:
        """Latents before the first step."""
        return np.asarray(self._row["latents"])

    def run(self, window: int, first: int, before: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run steps as rows of one batch of `window`, the last one repeated where some lack."""
        places = [*range(len(before)), *[len(before) - 1] * (window - len(before))]
        rows = stack_rows([{**self._row, "latents": before[place]} for place in places])
        each = [self.steps[first + place].values for place in places]
        values = {
            name: np.stack([np.asarray(one[name], np.float32) for one in each]) for name in each[0]
        }
        after = self._programs.step(self._phase, rows, values)
        return list(np.asarray(after["latents"])[: len(before)])

    def sequential(self) -> np.ndarray:
        """Return latents behind the last step, one after the other."""
        latents = self.start
        for number in range(len(self.steps)):
            (latents,) = self.run(1, number, [latents])
        return latents

    def pixels(self, latents: np.ndarray) -> np.ndarray:
        """Decode latents."""
        return np.asarray(self._programs.decode({**self._row, "latents": latents}))


@dataclass(frozen=True)
class Gain:
    """Gain of one image."""

    by_rounds: float
    evaluations: float
    """Steps of all rows, as a share of those one after the other."""
    time: float
    """Seconds of the clock on this machine, as a share of those one after the other."""
    psnr_db: float


def gain(steps: Steps, window: int, tolerance: float) -> Gain:
    """Draw an image both ways, in turns, programs compiled before."""
    run = partial(steps.run, window)
    steps.run(1, 0, [steps.start])
    run(0, [steps.start] * window)
    began = time.perf_counter()
    alone = steps.sequential()
    between = time.perf_counter()
    drawn = in_parallel(steps.start, len(steps.steps), window, tolerance, run)
    took, alone_s = time.perf_counter() - between, between - began
    return Gain(
        len(steps.steps) / drawn.rounds,
        drawn.evaluations / len(steps.steps),
        took / alone_s,
        psnr_db(steps.pixels(drawn.latents), steps.pixels(alone)),
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
        given = {**programs.pipeline.spec.defaults, "num_images": 1, "quality": EXACT}
        given["num_inference_steps"] = args.steps
        images = [
            Steps(programs, {**given, "prompt": prompt, "seed": seed})
            for seed, prompt in enumerate(prompts)
        ]
        for window in args.windows:
            for tolerance in args.tolerances:
                print(_row(name, window, tolerance, images), flush=True)


def _row(name: str, window: int, tolerance: float, images: Sequence[Steps]) -> str:
    found = [gain(one, window, tolerance) for one in images]
    cells = (
        f"{name}-demo",
        str(window),
        f"{tolerance:g}",
        f"1 / {median(one.by_rounds for one in found):.2f}",
        f"{median(one.evaluations for one in found):.2f}",
        f"{median(one.time for one in found):.2f}",
        f"{median(one.psnr_db for one in found):.1f} dB",
        f"{min(one.psnr_db for one in found):.1f} dB",
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
