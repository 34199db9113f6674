"""The training set as the transformer sees it: scenes drawn, encoded and tokenized once."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
from flax import nnx
from safetensors.numpy import load_file, save_file

from models.demo.dataset import random_scene
from models.demo.prompts import Prompts
from models.demo.scenes import draw
from models.flux.latents import pack
from models.vae.image import AutoencoderKL

CHUNK = 32


def training_set(
    path: Path, vae: AutoencoderKL, prompts: Prompts, count: int, pairs_share: float
) -> dict[str, np.ndarray]:
    """`latents` [count, tokens, 4c], `clip` and `t5` [count, length]; kept in `path`."""
    if path.exists():
        return load_file(path)
    encode = nnx.jit(lambda vae, pixels: jax.vmap(pack)(vae.encode(pixels)[0]))
    rng = np.random.default_rng(29)
    scenes = [random_scene(rng, pairs_share) for _ in range(count)]
    latents = []
    for first in range(0, count, CHUNK):
        pictures = [draw(scene, rng) for scene in scenes[first : first + CHUNK]]
        pixels = np.stack(pictures).astype(np.float32) / 127.5 - 1
        latents.append(np.asarray(encode(vae, pixels), np.float16))
    clip, t5 = prompts([scene.prompt for scene in scenes])
    data = {"latents": np.concatenate(latents), "clip": clip, "t5": t5}
    save_file(data, path)
    return data
