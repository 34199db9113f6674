"""Scores a denoiser by checking its drawings of held-out prompts."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from lab.demo.training.prompts import Prompts
from lab.demo.training.recipe import Recipe, Subject
from lab.demo.world.checker import MIN_OVERLAP, overlap
from models.sampling.guidance import classifier_free

CHUNK = 25
SEED = 11
PLACED = MIN_OVERLAP
"""Minimum overlap with an original for objects to count as correctly placed."""


def score(
    recipe: Recipe, model: Any, vae: nnx.Module, prompts: Prompts, sentences: list[str]
) -> tuple[dict[str, float], np.ndarray]:
    """Return the fraction of correct drawings, in total and by criterion, and the drawings."""
    drawings = sample(recipe, model, vae, prompts, sentences)
    marks = defaultdict(list)
    for drawing, sentence in zip(drawings, sentences, strict=True):
        report = recipe.subject.check(drawing, sentence)
        marks["correct"].append(report.correct)
        for name, right in report.criteria.items():
            marks[name].append(right)
    return {name: float(np.mean(right)) for name, right in marks.items()}, drawings


def sample(
    recipe: Recipe,
    model: Any,
    vae: nnx.Module,
    prompts: Prompts,
    sentences: list[str],
    shown: np.ndarray | None = None,
) -> np.ndarray:
    """Generate one drawing per sentence, uint8, from fixed noise.

    Args:
        shown: further network inputs per sentence.
    """
    rng = np.random.default_rng(SEED)
    shape = (len(sentences), *recipe.latents_shape)
    noise = rng.standard_normal(shape).astype(np.float32)
    read = nnx.jit(lambda model, tokens: model.read(tokens))
    positive, negative = read(model, prompts(sentences)), read(model, prompts([""]))
    decode = nnx.jit(recipe.subject.decode)
    drawings = []
    for first in range(0, len(sentences), CHUNK):
        rows = slice(first, first + CHUNK)
        text = jax.tree.map(lambda leaf, rows=rows: leaf[rows], positive)
        empty = jax.tree.map(
            lambda source, target: jnp.broadcast_to(source, target.shape), negative, text
        )
        if shown is not None:
            text, empty = (text, shown[rows]), (empty, shown[rows])
        latents = _denoise(recipe, model, noise[rows], (text, empty))
        drawings.append(np.asarray(decode(vae, latents)))
    return np.concatenate(drawings)


def compare(
    subject: Subject, drawings: np.ndarray, originals: np.ndarray, prompts: list[str]
) -> dict[str, float]:
    """Return the fractions of drawings with the right content and the right placement.

    `right` is the checker's result, `placed` the overlap with the originals, and `both` their
    conjunction. `overlap` is the mean overlap.
    """
    overlaps = np.array(list(map(overlap, drawings, originals)))
    right = np.array([subject.check(*pair).correct for pair in zip(drawings, prompts, strict=True)])
    placed = overlaps >= PLACED
    shares = {"right": right, "placed": placed, "both": right & placed, "overlap": overlaps}
    return {name: float(np.mean(values)) for name, values in shares.items()}


def _denoise(recipe: Recipe, model: Any, noise: np.ndarray, texts: tuple[Any, Any]) -> jax.Array:
    solver = recipe.scheduler.solver
    plan = recipe.scheduler.plan(recipe.steps)
    latents = jnp.asarray(noise) * plan.init_noise_sigma
    history = jax.vmap(solver.begin)(latents)
    for index in range(len(plan)):
        output = _predict(
            model,
            latents * plan.input_scale[index],
            plan.timesteps[index],
            texts,
            recipe.guidance,
        )
        values = {name: jnp.full(len(noise), value) for name, value in plan.at(index).items()}
        latents, _, history = solver.step(latents, output, history, None, values)
    return latents


@nnx.jit
def _predict(
    model: Any, latents: jax.Array, timestep: jax.Array, texts: tuple[Any, Any], guidance: float
) -> jax.Array:
    times = jnp.full(len(latents), timestep)
    positive, negative = (model.predict(latents, times, text) for text in texts)
    scale = jnp.full((len(positive), *(1,) * (positive.ndim - 1)), guidance)
    return classifier_free(positive, negative, scale)
