"""The demo's edits: an adapter with which its Flux reads an image, and changes what it is told.

The network reads the image as FLUX.1 Kontext does, as tokens behind those that it draws.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from models.demo.recipes.flux import IMAGE_IDS, SIDE, Flux, FluxDenoiser
from models.demo.training import lora
from models.demo.training.beside import training_data
from models.demo.training.evaluate import compare, sample
from models.demo.training.finished import finished
from models.demo.training.latents import encoded, in_chunks
from models.demo.training.pictures import held_out_prompts
from models.demo.training.prompts import Prompts
from models.demo.world.dataset import random_scene
from models.demo.world.edits import Edit, edits
from models.demo.world.scenes import draw
from models.demo.world.vocabulary import Scene
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
    """A Denoiser whose text is a pair, with the latents of the image that is changed."""

    def predict(
        self, latents: Float[Array, "batch h w c"], timestep: Float[Array, " batch"], text: Any
    ) -> Float[Array, "batch h w c"]:
        """Return the velocity at a time."""
        said, reference = text
        tokens = jnp.concatenate([jax.vmap(pack)(latents), jax.vmap(pack)(reference)], axis=1)
        return self.velocity(tokens, IDS, timestep, said)


class FluxEdit(Flux):
    """Flux that changes an image."""

    batch = 16

    def untrained(self, seed: int) -> FluxEditor:
        """Return the network with random weights."""
        return FluxEditor(self.sizes, rngs=nnx.Rngs(seed))


class Edited(NamedTuple):
    """Drawings before and after their edits, uint8 [count, height, width, 3]."""

    before: np.ndarray
    after: np.ndarray
    edits: list[Edit]


def edited(scenes: list[Scene], seed: int) -> Edited:
    """Draw each scene once, before and after one of its edits."""
    rng = np.random.default_rng(seed)
    found = []
    for scene in scenes:
        possible = list(edits(scene))
        found.append(possible[rng.integers(len(possible))])
    drawn = [
        [draw(scene, np.random.default_rng([seed, number])) for scene in (edit.before, edit.after)]
        for number, edit in enumerate(found)
    ]
    before, after = map(np.stack, zip(*drawn, strict=True))
    return Edited(before, after, found)


def make(base: Path, folder: Path) -> None:
    """Train the adapter for the checkpoint `base`; write its file into `folder`."""
    recipe = FluxEdit()
    model, vae = finished(recipe, base)
    prompts = Prompts(recipe.tokenizers(base))
    rng = np.random.default_rng(SEED)
    drawn = edited([random_scene(rng, PAIRS_SHARE) for _ in range(COUNT)], SEED)
    before, after = (
        encoded(recipe.subject, vae, in_chunks(drawings))
        for drawings in (drawn.before, drawn.after)
    )
    said = [edit.instruction for edit in drawn.edits]
    data = training_data(model, prompts, after, said, before)
    changes = lora.train(recipe, model, data, RANK, STEPS, state=folder / STATE)
    lora.write(changes, key_mapping.RENAMES, folder / FILE)
    examine(recipe, model, vae, prompts)
    examine(recipe, lora.changed(model, changes), vae, prompts)


def examine(recipe: FluxEdit, model: Any, vae: Any, prompts: Prompts) -> None:
    """Print what a model makes of edits of held-out scenes."""
    for kind, pairs in (("one object", False), ("two objects", True)):
        scenes = [Scene.parse(prompt) for prompt in held_out_prompts(EXAM, pairs)]
        exam = edited(scenes, EXAM_SEED)
        references = encoded(recipe.subject, vae, in_chunks(exam.before))
        said = [edit.instruction for edit in exam.edits]
        drawings = sample(recipe, model, vae, prompts, said, references)
        wanted = [edit.after.prompt for edit in exam.edits]
        marks = compare(recipe.subject, drawings, exam.after, wanted)
        print(kind, *(f"{name} {share:.1%}" for name, share in marks.items()), flush=True)
