"""Trains an adapter or a ControlNet of a finished model, which is frozen."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from lab.demo.training.checkpoint import restore, save
from lab.demo.training.prompts import Prompts
from lab.demo.training.train import UNPROMPTED_SHARE
from models.parallel.trace_options import TraceOptions

REPORT_STEPS, SAVE_S = 50, 60

PyTree = Any
Data = Mapping[str, Any]
"""Training data: `latents` [count, …]; `text`, the encoded prompts and last the empty prompt; and
optionally `shown` [count, …], further network inputs."""
Loss = Callable[[PyTree, PyTree, jax.Array, Any, jax.Array], jax.Array]
"""Function (trained, frozen, latents, text, key) → loss; with `shown` inputs, `text` is a pair with
them."""


class TrainingRun(NamedTuple):
    """Steps, batch size and learning rate of a training run for an adapter or ControlNet."""

    steps: int
    batch: int
    rate: float
    """Initial learning rate of Adam, followed by cosine decay."""
    unprompted: float = UNPROMPTED_SHARE
    """Fraction of prompts that are replaced by the empty prompt."""


def training_data(
    model: Any,
    prompts: Prompts,
    latents: np.ndarray,
    sentences: list[str],
    shown: np.ndarray | None = None,
) -> Data:
    """Return the latents of drawings, with their prompts encoded by the frozen encoders."""
    text = nnx.jit(lambda model, tokens: model.read(tokens))(model, prompts([*sentences, ""]))
    data = {"latents": jnp.asarray(latents, jnp.float32), "text": text}
    return data if shown is None else {**data, "shown": jnp.asarray(shown)}


def train(
    loss: Loss,
    trained: PyTree,
    frozen: PyTree,
    data: Data,
    training_run: TrainingRun,
    state: Path | None = None,
    seed: int = 0,
) -> PyTree:
    """Train for the sitting's number of steps, and return the trained parameters.

    Args:
        state: file from which the run resumes, and to which it is saved.
    """
    optimizer = optax.adam(optax.cosine_decay_schedule(training_run.rate, training_run.steps))
    run = {"trained": trained, "memory": optimizer.init(trained), "step": jnp.int32(0)}
    if state is not None and state.exists():
        run = jax.tree.map(jnp.asarray, restore(state, run))
    advance = _make_advance(loss, optimizer, training_run)
    errors, saved = [], time.monotonic()
    for step in range(int(run["step"]), training_run.steps):
        key = jax.random.fold_in(jax.random.key(seed), step)
        run, error = advance(run, frozen, data, key)
        errors.append(error)
        if len(errors) == REPORT_STEPS:
            print(f"step {step + 1} loss {np.mean(jax.device_get(errors)):.4f}", flush=True)
            errors = []
        if state is not None and time.monotonic() - saved > SAVE_S:
            save(state, run)
            saved = time.monotonic()
    if state is not None:
        save(state, run)
    return run["trained"]


def _make_advance(
    loss: Loss, optimizer: optax.GradientTransformation, training_run: TrainingRun
) -> Callable[..., Any]:
    """Return the compiled training step: (run, frozen, data, key) → (run, loss)."""

    def advance(
        run: dict[str, Any], frozen: PyTree, data: Data, key: jax.Array
    ) -> tuple[dict[str, Any], jax.Array]:
        row_key, drop_key, key = jax.random.split(key, 3)
        batch, count = (training_run.batch,), len(data["latents"])
        rows = jax.random.randint(row_key, batch, 0, count)
        dropped = jax.random.bernoulli(drop_key, training_run.unprompted, batch)
        indices = jnp.where(dropped, count, rows)
        text = jax.tree.map(lambda leaf: leaf[indices], data["text"])
        if "shown" in data:
            text = text, data["shown"][rows]

        def error(trained: PyTree) -> jax.Array:
            return loss(trained, frozen, data["latents"][rows], text, key)

        with TraceOptions(unroll=True).active():
            value, gradient = jax.value_and_grad(error)(run["trained"])
        updates, memory = optimizer.update(gradient, run["memory"])
        trained = optax.apply_updates(run["trained"], updates)
        return {"trained": trained, "memory": memory, "step": run["step"] + 1}, value

    return jax.jit(advance, donate_argnums=0)
