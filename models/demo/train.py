"""Trains transformer and text encoders together, by flow matching on the encoded scenes.

Source: Lipman et al. 2023 (flow matching); Esser et al. 2024, section 3.1, for the shift;
Jordan et al. 2024 (Muon) for the matrices' optimizer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from optax.contrib import MuonDimensionNumbers, muon

from models.demo.configs import DEMO, SHIFT, Sizes
from models.demo.model import TextToVelocity, shifted, untrained

BATCH = 32
MUON_RATE = 2e-3
ADAM_RATE = 1e-3
WARMUP, DECAY = 0.02, 0.4
UNPROMPTED_SHARE = 0.05
EMA_DECAY = 0.998

State = dict[str, Any]
Data = dict[str, jax.Array]
Advance = Callable[[State, Data, jax.Array], tuple[State, jax.Array]]


def start(seed: int, sizes: Sizes = DEMO) -> tuple[nnx.GraphDef, State]:
    """A fresh run: first weights, their average, empty optimizer, no step taken."""
    graph, parameters = nnx.split(untrained(seed, sizes))
    return graph, {
        "parameters": parameters,
        "average": jax.tree.map(jnp.copy, parameters),
        "optimizer": _optimizer.init(parameters),
        "step": jnp.int32(0),
        "spent_s": np.float64(0),
    }


def make_advance(graph: nnx.GraphDef, seed: int, batch: int = BATCH) -> Callable[..., Any]:
    """The compiled step: (state, data, rate) → (state, loss). Step n is the same in every run."""

    def advance(trained: State, data: Data, rate: jax.Array) -> tuple[State, jax.Array]:
        key = jax.random.fold_in(jax.random.key(seed), trained["step"])
        pick, key = jax.random.split(key)
        rows = jax.random.randint(pick, (batch,), 0, len(data["latents"]))
        sample = {name: array[rows] for name, array in data.items() if name != "empty"}
        sample = _forget(sample, data, jax.random.fold_in(key, 1))

        error, gradient = jax.value_and_grad(
            lambda parameters: loss(nnx.merge(graph, parameters), sample, key)
        )(trained["parameters"])
        updates, optimizer = _optimizer.update(
            gradient, trained["optimizer"], trained["parameters"]
        )
        updates = jax.tree.map(lambda update: rate * update, updates)
        parameters = optax.apply_updates(trained["parameters"], updates)
        step = trained["step"] + 1
        keep = jnp.minimum(EMA_DECAY, step / (step + 10))
        average = jax.tree.map(
            lambda old, new: keep * old + (1 - keep) * new, trained["average"], parameters
        )
        return {
            "parameters": parameters,
            "average": average,
            "optimizer": optimizer,
            "step": step,
        }, error

    return jax.jit(advance, donate_argnums=0)


def loss(model: TextToVelocity, sample: Data, key: jax.Array) -> jax.Array:
    """Mean squared error of the velocity, at sigmas spread evenly over the batch."""
    picture = sample["latents"].astype(jnp.float32)
    noise_key, offset_key = jax.random.split(key)
    noise = jax.random.normal(noise_key, picture.shape)
    even = (jnp.arange(len(picture)) + jax.random.uniform(offset_key)) / len(picture)
    sigma = shifted(even, SHIFT)
    noisy = picture + sigma[:, None, None] * (noise - picture)
    text = model.read(sample["clip"], sample["t5"])
    return jnp.square(model.velocity(noisy, sigma, text) - (noise - picture)).mean()


def _forget(sample: Data, data: Data, key: jax.Array) -> Data:
    """The sample with some of its prompts emptied, for guidance with a negative prompt."""
    gone = jax.random.bernoulli(key, UNPROMPTED_SHARE, (len(sample["clip"]), 1))
    emptied = {name: jnp.where(gone, data["empty"][name], sample[name]) for name in ("clip", "t5")}
    return {**sample, **emptied}


def _dimensions(parameters: Any) -> Any:
    """Matrices of the blocks, stacked by layer, go to Muon; all else to Adam."""

    def by_path(path: tuple[Any, ...], leaf: jax.Array) -> MuonDimensionNumbers | None:
        name = jax.tree_util.keystr(path)
        matrix = "blocks" in name and "kernel" in name and "modulation" not in name
        return MuonDimensionNumbers(1, 2) if matrix else None

    return jax.tree_util.tree_map_with_path(by_path, parameters)


_optimizer = optax.chain(
    optax.clip_by_global_norm(1.0),
    muon(
        MUON_RATE,
        adam_learning_rate=ADAM_RATE,
        adam_b2=0.99,
        consistent_rms=0.2,
        muon_weight_dimension_numbers=_dimensions,
    ),
)
