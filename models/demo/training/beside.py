"""Trains what is put beside a finished model, which stays as it is: an adapter, a ControlNet."""

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

from models.demo.training.checkpoint import restore, save
from models.demo.training.prompts import Prompts
from models.demo.training.train import UNPROMPTED_SHARE
from models.parallel.trace_options import TraceOptions

REPORT_STEPS, SAVE_S = 50, 60

PyTree = Any
Data = Mapping[str, Any]
"""`latents` [count, …], and the `text` of their prompts and, last, of the empty one; where the
network sees more than text, what is `shown` with each [count, …]."""
Loss = Callable[[PyTree, PyTree, jax.Array, Any, jax.Array], jax.Array]
"""(trained, frozen, latents, text, key) → loss; `text` is a pair with what is shown, if any is."""


class Sitting(NamedTuple):
    """Length and speed of a training."""

    steps: int
    batch: int
    rate: float
    """Adam's, at first; it falls by half a cosine."""
    unprompted: float = UNPROMPTED_SHARE
    """Share of prompts that are emptied."""


def training_data(
    model: Any,
    prompts: Prompts,
    latents: np.ndarray,
    said: list[str],
    shown: np.ndarray | None = None,
) -> Data:
    """Return drawings' latents with their prompts as the frozen encoders read them."""
    text = nnx.jit(lambda model, tokens: model.read(tokens))(model, prompts([*said, ""]))
    data = {"latents": jnp.asarray(latents, jnp.float32), "text": text}
    return data if shown is None else {**data, "shown": jnp.asarray(shown)}


def train(
    loss: Loss,
    trained: PyTree,
    frozen: PyTree,
    data: Data,
    sitting: Sitting,
    state: Path | None = None,
    seed: int = 0,
) -> PyTree:
    """Train for so many steps, and return what was trained.

    Args:
        state: file that the run resumes from, and is kept in.
    """
    optimizer = optax.adam(optax.cosine_decay_schedule(sitting.rate, sitting.steps))
    run = {"trained": trained, "memory": optimizer.init(trained), "step": jnp.int32(0)}
    if state is not None and state.exists():
        run = jax.tree.map(jnp.asarray, restore(state, run))
    advance = _make_advance(loss, optimizer, sitting)
    errors, saved = [], time.monotonic()
    for step in range(int(run["step"]), sitting.steps):
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
    loss: Loss, optimizer: optax.GradientTransformation, sitting: Sitting
) -> Callable[..., Any]:
    """The compiled step: (run, frozen, data, key) → (run, loss)."""

    def advance(
        run: dict[str, Any], frozen: PyTree, data: Data, key: jax.Array
    ) -> tuple[dict[str, Any], jax.Array]:
        pick, forget, key = jax.random.split(key, 3)
        batch, count = (sitting.batch,), len(data["latents"])
        rows = jax.random.randint(pick, batch, 0, count)
        emptied = jax.random.bernoulli(forget, sitting.unprompted, batch)
        said = jnp.where(emptied, count, rows)
        text = jax.tree.map(lambda leaf: leaf[said], data["text"])
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
