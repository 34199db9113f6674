"""One training run: from the finished autoencoder to the exported model, in as many sittings."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from PIL import Image

from models.demo.checkpoint import restore, save
from models.demo.evaluate import held_out_prompts, score
from models.demo.export import export
from models.demo.latents import training_set
from models.demo.model import TextToVelocity
from models.demo.prompts import Prompts
from models.demo.schedule import Clock, warmup_stable_decay
from models.demo.train import DECAY, WARMUP, State, make_advance, start
from models.demo.train_vae import trained

STATE = "flux.safetensors"
SCENES = 50_000
PAIRS_SHARE = 0.25
REPORT_STEPS = 100
EVALUATE_S = 420
PROMPTS, PAIRS = 100, 25


def train(run: Path, minutes: float, target: Path, seed: int = 0) -> None:
    """Train until the time is up, resuming what `run` holds; the best model goes to `target`."""
    judge = Judge(run, target)
    data = training_set(run / "latents.safetensors", judge.vae, judge.prompts, SCENES, PAIRS_SHARE)
    device_data = jax.device_put({**data, "empty": _empty(judge.prompts)})
    graph, state = resume(run, seed)
    clock = Clock(60 * minutes, float(state.pop("spent_s")))
    advance = make_advance(graph, seed)
    judged, errors = time.monotonic(), []
    while (progress := clock.progress()) < 1:
        rate = warmup_stable_decay(progress, warmup=WARMUP, decay=DECAY)
        state, error = advance(state, device_data, rate)
        errors.append(error)
        if len(errors) == REPORT_STEPS:
            _report(int(state["step"]), clock, rate, errors)
            errors = []
        if time.monotonic() - judged > EVALUATE_S:
            save(run / STATE, {**state, "spent_s": np.float64(clock.elapsed_s)})
            judge(nnx.merge(graph, state["average"]))
            judged = time.monotonic()
    save(run / STATE, {**state, "spent_s": np.float64(clock.elapsed_s)})
    judge(nnx.merge(graph, state["average"]))


def resume(run: Path, seed: int = 0) -> tuple[nnx.GraphDef, State]:
    """The state that `run` holds, or a fresh one."""
    graph, state = start(seed)
    if (run / STATE).exists():
        state = jax.tree.map(jnp.asarray, restore(run / STATE, state))
    return graph, state


def averaged(run: Path) -> TextToVelocity:
    """The model of a run: the moving average of its weights."""
    graph, state = resume(run)
    return nnx.merge(graph, state["average"])


class Judge:
    """Scores a model on held-out prompts and exports it if none before was better."""

    def __init__(self, run: Path, target: Path) -> None:
        self.run, self.target = run, target
        self.vae, self.prompts = trained(run), Prompts(run)
        self.best = 0.0

    def __call__(self, model: TextToVelocity, count: int = PROMPTS, pairs: int = PAIRS) -> None:
        one, pictures = score(model, self.vae, self.prompts, held_out_prompts(count))
        two, more = score(model, self.vae, self.prompts, held_out_prompts(pairs, pairs=True))
        for what, marks in (("one object", one), ("two objects", two)):
            print(what, *(f"{name} {share:.1%}" for name, share in marks.items()), flush=True)
        self._show(pictures, more)
        if one["correct"] >= self.best:
            self.best = one["correct"]
            export(model, self.vae, self.target)

    def _show(self, one: np.ndarray, two: np.ndarray) -> None:
        sheet = np.concatenate([one[:32], two[:16]])
        rows = [np.hstack(list(sheet[first : first + 8])) for first in range(0, len(sheet) - 7, 8)]
        Image.fromarray(np.vstack(rows)).save(self.run / "samples.png")


def _empty(prompts: Prompts) -> dict[str, np.ndarray]:
    clip, t5 = prompts([""])
    return {"clip": clip[0], "t5": t5[0]}


def _report(step: int, clock: Clock, rate: float, errors: list[Any]) -> None:
    error = float(np.mean(jax.device_get(errors)))
    print(f"step {step} {clock.elapsed_s:.0f} s rate {rate:.3f} loss {error:.4f}", flush=True)
