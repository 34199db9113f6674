"""LoRA adapters of the demo's Flux: training data and training program."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from lab.demo.recipes.flux import Flux
from lab.demo.training import lora
from lab.demo.training.evaluate import score
from lab.demo.training.finished import finished
from lab.demo.training.fitted_latents import fitted_set
from lab.demo.training.frozen_base import training_data
from lab.demo.training.prompts import Prompts
from lab.demo.training.recipe import Subject
from lab.demo.training.styles import NewColour, Outlines
from models.flux import key_mapping

PREVIEW = 2
"""Images along a side of an adapter's preview."""


class DemoLora(NamedTuple):
    """Subject, rank and steps of one demo LoRA."""

    subject: Subject
    rank: int
    steps: int


LORAS: Mapping[str, DemoLora] = {
    "outline": DemoLora(Outlines(), rank=8, steps=800),
    "coral": DemoLora(NewColour("coral"), rank=4, steps=800),
}


class Adapted(Flux):
    """Flux recipe with the subject of a LoRA."""

    def __init__(self, subject: Subject) -> None:
        super().__init__()
        self.subject = subject


def make(name: str, base: Path, folder: Path) -> None:
    """Train a demo LoRA for the checkpoint `base`; write its file and preview to `folder`."""
    subject, rank, steps = LORAS[name]
    recipe = Adapted(subject)
    model, vae = finished(recipe, base)
    prompts = Prompts(recipe.tokenizers(base))
    data = training_data(model, prompts, *fitted_set(subject, vae))
    changes = lora.train(recipe, model, data, rank, steps)
    lora.write(changes, key_mapping.RENAMES, folder / f"{name}.safetensors")
    examine(recipe, model, vae, prompts)
    drawings = examine(recipe, lora.changed(model, changes), vae, prompts)
    preview(drawings).save(folder / f"{name}.png", optimize=True)


def examine(recipe: Adapted, model: Any, vae: Any, prompts: Prompts) -> np.ndarray:
    """Print a model's scores, and return its drawings of the first exam."""
    drawings = []
    for kind, sentences in recipe.subject.exams().items():
        marks, images = score(recipe, model, vae, prompts, sentences)
        print(kind, *(f"{name} {share:.1%}" for name, share in marks.items()), flush=True)
        drawings.append(images)
    return drawings[0]


def preview(drawings: np.ndarray) -> Image.Image:
    """Return the first drawings as a square image, with few colours for a small file."""
    rows = drawings[: PREVIEW**2].reshape(PREVIEW, PREVIEW, *drawings.shape[1:])
    square = np.vstack([np.hstack(list(row)) for row in rows])
    return Image.fromarray(square).quantize(64)
