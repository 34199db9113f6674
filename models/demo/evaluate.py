"""Scores the model: pictures of held-out prompts, held against the checker."""

from __future__ import annotations

from collections import defaultdict

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models.demo.checker import check
from models.demo.configs import SHIFT, STEPS, TRUE_CFG_SCALE
from models.demo.dataset import held_out_scenes
from models.demo.model import IMAGE_IDS, SIDE, TextToVelocity, shifted
from models.demo.prompts import Prompts
from models.flux.latents import unpack
from models.pictures import to_uint8
from models.sampling.guidance import classifier_free
from models.vae.image import AutoencoderKL

CHUNK = 25


def held_out_prompts(count: int, pairs: bool = False) -> list[str]:
    """The first `count` held-out prompts of one object (or two), in a fixed shuffled order."""
    scenes = held_out_scenes()[pairs]
    order = np.random.default_rng(3).permutation(len(scenes))
    return [scenes[index].prompt for index in order[:count]]


def score(
    model: TextToVelocity, vae: AutoencoderKL, prompts: Prompts, sentences: list[str]
) -> tuple[dict[str, float], np.ndarray]:
    """The share of pictures right, in all (`correct`) and by criterion; and the pictures."""
    pictures = sample(model, vae, prompts, sentences)
    marks = defaultdict(list)
    for picture, sentence in zip(pictures, sentences, strict=True):
        report = check(picture, sentence)
        marks["correct"].append(report.correct)
        for name, right in report.criteria.items():
            marks[name].append(right)
    return {name: float(np.mean(right)) for name, right in marks.items()}, pictures


def sample(
    model: TextToVelocity, vae: AutoencoderKL, prompts: Prompts, sentences: list[str]
) -> np.ndarray:
    """One picture a sentence, uint8 [count, 96, 96, 3], by Euler steps from fixed noise."""
    clip, t5 = prompts(sentences)
    shape = (len(sentences), len(IMAGE_IDS), model.transformer.config.in_channels)
    noise = np.random.default_rng(11).standard_normal(shape).astype(np.float32)
    nothing = jax.device_put(prompts([""]))
    noise, clip, t5 = jax.device_put((noise, clip, t5))
    chunks = [slice(first, first + CHUNK) for first in range(0, len(sentences), CHUNK)]
    pictures = [_denoise(model, vae, noise[at], clip[at], t5[at], nothing) for at in chunks]
    return np.concatenate(pictures)


@nnx.jit
def _denoise(
    model: TextToVelocity,
    vae: AutoencoderKL,
    noise: jax.Array,
    clip: jax.Array,
    t5: jax.Array,
    nothing: tuple[jax.Array, jax.Array],
) -> jax.Array:
    said = model.read(clip, t5)
    unsaid = jax.tree.map(
        lambda one, many: jnp.broadcast_to(one, many.shape), model.read(*nothing), said
    )
    sigmas = jnp.append(shifted(jnp.linspace(1, 1 / STEPS, STEPS), SHIFT), 0)

    def step(latents: jax.Array, pair: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        sigma, after = pair
        level = jnp.full(len(latents), sigma)
        positive, negative = (model.velocity(latents, level, text) for text in (said, unsaid))
        velocity = classifier_free(positive, negative, jnp.float32(TRUE_CFG_SCALE))
        return latents + (after - sigma) * velocity, None

    latents, _ = jax.lax.scan(step, noise, (sigmas[:-1], sigmas[1:]))
    pixels = vae.decode(jax.vmap(lambda tokens: unpack(tokens, SIDE, SIDE))(latents))
    return jax.vmap(to_uint8)(pixels)
