"""Training run of a family, from the trained autoencoder to the exported model; resumable."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from PIL import Image

from lab.demo.training.checkpoint import restore, save
from lab.demo.training.checkpoint_folder import write
from lab.demo.training.evaluate import score
from lab.demo.training.latents import training_set
from lab.demo.training.prompts import Prompts
from lab.demo.training.recipe import Recipe
from lab.demo.training.schedule import Clock, warmup_stable_decay
from lab.demo.training.train import DECAY, WARMUP, Data, State, make_advance, start

STATE, BEST = "state.safetensors", "best.safetensors"
REPORT_STEPS = 50
EVALUATE_S = 420


def train(recipe: Recipe, runs: Path, minutes: float, seed: int = 0) -> None:
    """Train until the time budget is spent, resuming from the run's folder; save the best model."""
    folder = runs / recipe.name
    judge = Judge(recipe, runs)
    data = jax.device_put(training_data(recipe, judge, runs))
    graph, state = resume(recipe, folder, seed)
    clock = Clock(60 * minutes, float(state.pop("spent_s")))
    advance = make_advance(graph, seed, recipe.batch)
    judged, errors = time.monotonic(), []
    while (progress := clock.progress()) < 1:
        rate = warmup_stable_decay(progress, warmup=WARMUP, decay=DECAY)
        state, error = advance(state, data, rate)
        errors.append(error)
        if len(errors) == REPORT_STEPS:
            _report(int(state["step"]), clock, rate, errors)
            errors = []
        if time.monotonic() - judged > EVALUATE_S:
            save(folder / STATE, {**state, "spent_s": np.float64(clock.elapsed_s)})
            judge(nnx.merge(graph, state["average"]))
            judged = time.monotonic()
    save(folder / STATE, {**state, "spent_s": np.float64(clock.elapsed_s)})
    judge(nnx.merge(graph, state["average"]))


def export(recipe: Recipe, runs: Path) -> None:
    """Write the best model of a run as a checkpoint, in the run's folder under `model`.

    The served checkpoints are in other folders and are not modified.
    """
    folder = runs / recipe.name
    graph, parameters = nnx.split(recipe.untrained(0))
    best = restore(folder / BEST, {"weights": parameters, "score": np.float64(0)})
    vae = recipe.subject.autoencoder(runs / recipe.subject.name)
    write(recipe.checkpoint(nnx.merge(graph, best["weights"]), vae), folder / "model")


def training_data(recipe: Recipe, judge: Judge, runs: Path) -> Data:
    """Return the latents of the subject's drawings, and the tokens of their prompts."""
    path = runs / recipe.subject.name / "latents.safetensors"
    latents, prompts = training_set(path, recipe.subject, judge.vae, recipe.subject.count)
    empty = {name: tokens[0] for name, tokens in judge.prompts([""]).items()}
    return {"latents": latents, "tokens": judge.prompts(prompts), "empty": empty}


def resume(recipe: Recipe, folder: Path, seed: int = 0) -> tuple[nnx.GraphDef, State]:
    """Return the state in the folder, or an initial state."""
    graph, state = start(recipe.untrained(seed))
    if (folder / STATE).exists():
        state = jax.tree.map(jnp.asarray, restore(folder / STATE, state))
    return graph, state


class Judge:
    """Scores models on held-out prompts, and saves the best one."""

    def __init__(self, recipe: Recipe, runs: Path) -> None:
        self.recipe, self.folder = recipe, runs / recipe.name
        self.vae = recipe.subject.autoencoder(runs / recipe.subject.name)
        recipe.write_tokenizers(self.folder)
        self.prompts = Prompts(recipe.tokenizers(self.folder))
        self.best = 0.0

    def __call__(self, model: Any) -> None:
        """Score the exams' drawings; save a contact sheet, and the model if it is the best."""
        scores, drawings = [], []
        for kind, sentences in self.recipe.subject.exams().items():
            marks, images = score(self.recipe, model, self.vae, self.prompts, sentences)
            print(kind, *(f"{name} {share:.1%}" for name, share in marks.items()), flush=True)
            scores.append(marks["correct"])
            drawings.append(images)
        sheet = self.recipe.subject.sheet(np.concatenate(drawings))
        Image.fromarray(sheet).save(self.folder / "samples.png")
        if scores[0] >= self.best:
            self.best = scores[0]
            save(self.folder / BEST, {"weights": nnx.state(model), "score": np.float64(self.best)})


def _report(step: int, clock: Clock, rate: float, errors: list[Any]) -> None:
    error = float(np.mean(jax.device_get(errors)))
    print(f"step {step} {clock.elapsed_s:.0f} s rate {rate:.3f} loss {error:.4f}", flush=True)
