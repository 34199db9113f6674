"""Networks of full width with random weights: what the levers change where nothing was learnt.

Only the denoising network runs, on random embeddings, by a few Euler steps from noise. Random
weights draw nothing that anybody would know again; what is compared is the latents at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models.flux import published as flux
from models.flux.config import FluxConfig
from models.flux.latents import image_ids
from models.flux.transformer import FluxTransformer
from models.nn.abstract import abstract_module
from models.nn.eight_bit import eight_bit
from models.nn.step_cache import CachedStep, blank
from models.quality import COEFFICIENTS, DEGREES, THRESHOLD, Quality
from models.rounding import Rounding, as_used
from models.wan import published as wan
from models.wan.config import WanConfig
from models.wan.transformer import WanTransformer
from models.weights import filled, flat_parameters

STEPS = 8
TEXT_TOKENS = 64


@dataclass(frozen=True)
class Wide:
    """One network, and how it is called: (network, latents, timestep, seed, cache) → velocity."""

    name: str
    make: Callable[..., nnx.Module]
    config: Any
    shape: tuple[int, ...]
    """Of the latents."""
    tokens: int
    call: Callable[..., jax.Array]


def _flux(network: Any, latents: Any, timestep: Any, embeds: Any, cache: Any) -> jax.Array:
    config, side = network.config, math.isqrt(4 * latents.shape[1])
    pooled = embeds[:, 0, : config.pooled_projection_dim]
    ids, text_ids = image_ids(side, side), np.zeros((embeds.shape[1], 3), int)
    guidance = jnp.full(1, 3.5) if config.guidance_embeds else None
    velocity: jax.Array = network(latents, embeds, pooled, timestep, guidance, ids, text_ids, cache)
    return velocity


def _wan(network: Any, latents: Any, timestep: Any, embeds: Any, cache: Any) -> jax.Array:
    velocity: jax.Array = network(latents, timestep, embeds, None, cache)
    return velocity


FLUX_SLICE = {**flux.FLUX_DEV["transformer"], "num_layers": 1, "num_single_layers": 2}

WIDE = {
    "wan": Wide(
        "Wan 2.1 T2V 1.3B, whole, 128 x 128, 1 frame",
        WanTransformer,
        WanConfig.from_dict(wan.T2V_1_3B),
        (1, 1, 16, 16, 16),
        64,
        _wan,
    ),
    "flux": Wide(
        "FLUX.1 dev, 1 of 19 double and 2 of 38 single blocks, 128 x 128",
        FluxTransformer,
        FluxConfig.from_dict(FLUX_SLICE),
        (1, 64, 64),
        64,
        _flux,
    ),
}


def costs(
    wide: Wide, presets: Mapping[str, Quality], seeds: int
) -> dict[str, tuple[float, float, float]]:
    """By preset: PSNR of the latents in dB, its worst, and the share of steps left out."""
    graph, state = nnx.split(_network(wide))
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in presets}
    programs = {
        q.of_program: partial(_step, wide, graph, q) for q in (Quality(), *presets.values())
    }
    compiled = {levers: jax.jit(step) for levers, step in programs.items()}
    for seed in range(seeds):
        exact, _ = _denoised(wide, state, compiled[Quality().of_program], Quality(), seed)
        for name, quality in presets.items():
            latents, left = _denoised(wide, state, compiled[quality.of_program], quality, seed)
            found[name].append((_psnr_db(latents, exact), left))
    return {
        name: (
            median(db for db, _ in pairs),
            min(db for db, _ in pairs),
            float(np.mean([s for _, s in pairs])),
        )
        for name, pairs in found.items()
    }


def _network(wide: Wide) -> nnx.Module:
    """With random kernels, and those of blocks in 8 bits, too."""
    shapes = abstract_module(wide.make, wide.config, param_dtype=jnp.bfloat16)
    stored = flat_parameters(_random(shapes))
    network = Rounding("beside").of(shapes)
    arrays: dict[str, jax.Array] = {}
    for path, leaf in stored.items():
        arrays |= as_used(path, leaf.get_value(), flat_parameters(network), None)
    return filled(network, arrays)


def _denoised(
    wide: Wide, state: Any, step: Any, quality: Quality, seed: int
) -> tuple[np.ndarray, float]:
    """Latents after the last step, and the share of steps that were left out."""
    noise, text = jax.random.split(jax.random.key(seed))
    latents = jax.random.normal(noise, wide.shape, jnp.float32)
    width = (
        wide.config.text_dim
        if isinstance(wide.config, WanConfig)
        else wide.config.joint_attention_dim
    )
    embeds = jax.random.normal(text, (1, TEXT_TOKENS, width), jnp.bfloat16)
    kept = jax.tree.map(lambda x: x[None], blank(1, wide.tokens, wide.config.width, jnp.bfloat16))
    sigmas = np.linspace(1, 0, STEPS + 1)
    left = 0
    for i, threshold in enumerate(quality.thresholds(["step"] * STEPS)):
        values = {THRESHOLD: np.float32([threshold]), "sigma": np.float32(sigmas[i : i + 2])}
        latents, kept = step(state, latents, embeds, kept, values)
        left += float(kept["distance"][0]) > 0
    return np.asarray(latents), left / STEPS


def _step(
    wide: Wide, graph: Any, quality: Quality, state: Any, latents: Any, embeds: Any, kept: Any,
    values: Any,
) -> Any:  # fmt: skip
    kind = quality.of_program.step_cache
    identity = jnp.asarray([[0.0] * (DEGREES - 2) + [1.0, 0.0]])
    cache = CachedStep(kind, kept, {**values, COEFFICIENTS: identity}) if kind else None
    now, then = values["sigma"][0], values["sigma"][1]
    with eight_bit(quality.eight_bit):
        velocity = wide.call(nnx.merge(graph, state), latents, 1000 * now[None], embeds, cache)
    return latents + (then - now) * velocity.astype(jnp.float32), cache.after if cache else kept


def _random(module: Any) -> Any:
    """Kernels of a variance of one over their inputs; vectors as they are: gains 1, biases 0."""
    graph, state = nnx.split(module)
    leaves, tree = jax.tree.flatten_with_path(state)
    rng, drawn = np.random.default_rng(0), []
    for path, leaf in leaves:
        name = jax.tree_util.keystr(path)
        scale = math.prod(leaf.shape[:-1][-1:] or (1,)) ** -0.5 if "kernel" in name else 0.02
        plain = "scale']" in name or "bias" in name
        numbers = (
            np.full(leaf.shape, float("scale']" in name), np.float32)
            if plain
            else (scale * rng.standard_normal(leaf.shape, np.float32))
        )
        drawn.append(jnp.asarray(numbers, leaf.dtype))
    return nnx.merge(graph, jax.tree.unflatten(tree, drawn))


def _psnr_db(latents: np.ndarray, exact: np.ndarray) -> float:
    """Against the exact latents' whole range."""
    noise = float(np.mean(np.square(latents - exact)))
    return 99.0 if noise == 0 else 20 * math.log10(float(np.ptp(exact))) - 10 * math.log10(noise)
