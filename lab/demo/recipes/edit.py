"""Image editing adapter of the demo's Flux: training data and training program.

As in FLUX.1 Kontext, the input image's tokens are appended to those of the output image.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from lab.demo.recipes.flux import IMAGE_IDS, SIDE, Flux, FluxDenoiser
from lab.demo.training import lora
from lab.demo.training.evaluate import compare, sample
from lab.demo.training.finished import finished
from lab.demo.training.frozen_base import training_data
from lab.demo.training.images import held_out_prompts
from lab.demo.training.latents import encoded, in_chunks
from lab.demo.training.prompts import Prompts
from lab.demo.world.edits import Edit, edits
from lab.demo.world.scenes import draw, random_scene
from lab.demo.world.vocabulary import Scene
from models.flux import key_mapping
from models.flux.image_conditioning import REFERENCE
from models.flux.latents import image_ids
from models.vae.patches import pack

FILE, STATE = "flux.safetensors", "state.safetensors"
IDS = np.concatenate([IMAGE_IDS, image_ids(SIDE, SIDE, index=REFERENCE)])
COUNT, PAIRS_SHARE = 6000, 0.25
RANK, STEPS = 16, 2000
SEED = 37
EXAM, EXAM_SEED = 64, 7


class FluxEditor(FluxDenoiser):
    """Denoiser conditioned on a pair: text, and the latents of the input image."""

    def predict(
        self, latents: Float[Array, "batch h w c"], timestep: Float[Array, " batch"], text: Any
    ) -> Float[Array, "batch h w c"]:
        """Return the velocity for noisy latents and a (text, input image latents) pair."""
        prompt, reference = text
        tokens = jnp.concatenate([jax.vmap(pack)(latents), jax.vmap(pack)(reference)], axis=1)
        return self.velocity(tokens, IDS, timestep, prompt)


class FluxEdit(Flux):
    """Training recipe of the demo's image editing Flux."""

    batch = 16

    def untrained(self, seed: int) -> FluxEditor:
        """Return the editing denoiser with random weights."""
        return FluxEditor(self.sizes, rngs=nnx.Rngs(seed))


class Edited(NamedTuple):
    """Drawings before and after their edits, uint8 [count, height, width, 3]."""

    before: np.ndarray
    after: np.ndarray
    edits: list[Edit]


def edited(scenes: list[Scene], seed: int) -> Edited:
    """Draw each demo scene before and after one of its edits."""
    rng = np.random.default_rng(seed)
    chosen = []
    for scene in scenes:
        possible = list(edits(scene))
        chosen.append(possible[rng.integers(len(possible))])
    drawings = [
        [draw(scene, np.random.default_rng([seed, number])) for scene in (edit.before, edit.after)]
        for number, edit in enumerate(chosen)
    ]
    before, after = map(np.stack, zip(*drawings, strict=True))
    return Edited(before, after, chosen)


def make(base: Path, folder: Path) -> None:
    """Train the demo's editing adapter for the checkpoint `base`, and write it to `folder`."""
    recipe = FluxEdit()
    model, vae = finished(recipe, base)
    prompts = Prompts(recipe.tokenizers(base))
    rng = np.random.default_rng(SEED)
    examples = edited([random_scene(rng, PAIRS_SHARE) for _ in range(COUNT)], SEED)
    before, after = (
        encoded(recipe.subject, vae, in_chunks(drawings))
        for drawings in (examples.before, examples.after)
    )
    instructions = [edit.instruction for edit in examples.edits]
    data = training_data(model, prompts, after, instructions, before)
    changes = lora.train(recipe, model, data, RANK, STEPS, state=folder / STATE)
    lora.write(changes, key_mapping.RENAMES, folder / FILE)
    examine(recipe, model, vae, prompts)
    examine(recipe, lora.changed(model, changes), vae, prompts)


def examine(recipe: FluxEdit, model: Any, vae: Any, prompts: Prompts) -> None:
    """Print a model's scores on edits of held-out scenes."""
    for kind, pairs in (("one object", False), ("two objects", True)):
        scenes = [Scene.parse(prompt) for prompt in held_out_prompts(EXAM, pairs)]
        exam = edited(scenes, EXAM_SEED)
        references = encoded(recipe.subject, vae, in_chunks(exam.before))
        instructions = [edit.instruction for edit in exam.edits]
        drawings = sample(recipe, model, vae, prompts, instructions, references)
        expected = [edit.after.prompt for edit in exam.edits]
        marks = compare(recipe.subject, drawings, exam.after, expected)
        print(kind, *(f"{name} {share:.1%}" for name, share in marks.items()), flush=True)
