"""Training step of a denoiser and its text encoders, with its optimizer."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.stages import Wrapped
from optax.contrib import MuonDimensionNumbers, muon

from models.parallel.trace_options import TraceOptions

MUON_RATE = 2e-3
ADAM_RATE = 1e-3

MATRIX, STACKED_MATRIX = MuonDimensionNumbers(0, 1), MuonDimensionNumbers(1, 2)
NOT_MUON = ("time_emb", "relative_bias")


def _dimensions(parameters: Any) -> Any:
    """Select parameters for Muon: matrices of blocks, single or stacked by layer."""

    def by_path(path: tuple[Any, ...], leaf: jax.Array) -> MuonDimensionNumbers | None:
        name = jax.tree_util.keystr(path)
        if "block" not in name or "kernel" not in name or any(word in name for word in NOT_MUON):
            return None
        return {2: MATRIX, 3: STACKED_MATRIX}.get(leaf.ndim)

    return jax.tree_util.tree_map_with_path(by_path, parameters)


optimizer = optax.chain(
    optax.clip_by_global_norm(1.0),
    muon(
        MUON_RATE,
        adam_learning_rate=ADAM_RATE,
        adam_b2=0.99,
        consistent_rms=0.2,
        muon_weight_dimension_numbers=_dimensions,
    ),
)


WARMUP, DECAY = 0.02, 0.4
UNPROMPTED_SHARE = 0.05
EMA_DECAY = 0.998

State = dict[str, Any]
Data = dict[str, Any]
"""Training data: `latents` [count, …], and by encoder the `tokens` of their prompts and of the
`empty` prompt."""


def start(model: nnx.Module) -> tuple[nnx.GraphDef, State]:
    """Return the state of a new run: initial weights, their average, and the optimizer's state."""
    graph, parameters = nnx.split(model)
    return graph, {
        "parameters": parameters,
        "average": jax.tree.map(jnp.copy, parameters),
        "optimizer": optimizer.init(parameters),
        "step": jnp.int32(0),
        "spent_s": np.float64(0),
    }


def make_advance(graph: nnx.GraphDef, seed: int, batch: int) -> Wrapped:
    """Return the compiled step: (state, data, rate) → (state, loss). Step n is deterministic."""

    def advance(trained: State, data: Data, rate: jax.Array) -> tuple[State, jax.Array]:
        key = jax.random.fold_in(jax.random.key(seed), trained["step"])
        row_key, key = jax.random.split(key)
        rows = jax.random.randint(row_key, (batch,), 0, len(data["latents"]))
        latents = data["latents"][rows].astype(jnp.float32)
        tokens = {name: ids[rows] for name, ids in data["tokens"].items()}
        tokens = _forget(tokens, data["empty"], jax.random.fold_in(key, 1))

        def error(parameters: Any) -> jax.Array:
            model = nnx.merge(graph, parameters)
            return model.loss(latents, model.read(tokens), key)

        with TraceOptions(unroll=True).active():
            loss, gradient = jax.value_and_grad(error)(trained["parameters"])
        updates, memory = optimizer.update(gradient, trained["optimizer"], trained["parameters"])
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
            "optimizer": memory,
            "step": step,
        }, loss

    return jax.jit(advance, donate_argnums=0)


def spread(key: jax.Array, count: int) -> jax.Array:
    """Return times in 0 to 1 for a batch, evenly spaced with a random offset."""
    return (jnp.arange(count) + jax.random.uniform(key)) / count


def shifted(sigma: jax.Array, shift: float) -> jax.Array:
    """Shift sigmas towards noise. Source: Esser et al. 2024, eq. 23."""
    return shift * sigma / (1 + (shift - 1) * sigma)


def _forget(
    tokens: dict[str, jax.Array], empty: dict[str, jax.Array], key: jax.Array
) -> dict[str, jax.Array]:
    """Replace random prompts by the empty prompt, to train classifier-free guidance."""
    count = len(next(iter(tokens.values())))
    dropped = jax.random.bernoulli(key, UNPROMPTED_SHARE, (count, 1))
    return {name: jnp.where(dropped, empty[name], ids) for name, ids in tokens.items()}
