"""ControlNet of the demo's SDXL: config, training data and training program.

It has no attention, like diffusers' small ControlNets for SDXL.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lab.demo.recipes.sdxl import UNET, Sdxl
from lab.demo.training import control
from lab.demo.training.checkpoint_folder import DIFFUSERS_VERSION
from lab.demo.training.evaluate import compare, sample
from lab.demo.training.finished import finished
from lab.demo.training.frozen_base import TrainingRun, training_data
from lab.demo.training.images import held_out_prompts
from lab.demo.training.latents import encoded, in_chunks
from lab.demo.training.prompts import Prompts
from lab.demo.world.scenes import draw, random_scene
from lab.demo.world.vocabulary import Scene
from models.interface.canny import canny
from models.sdxl.control_config import ControlNetConfig

NAME = "outline"
CONFIG = ControlNetConfig(
    trunk=dataclasses.replace(
        UNET,
        down_block_types=("DownBlock2D",) * 3,
        up_block_types=("UpBlock2D",) * 3,
        mid_block_type="UNetMidBlock2D",
    ),
    conditioning_embedding_out_channels=(8, 16, 32, 64),
)
COUNT, PAIRS_SHARE = 4000, 0.4
TRAINING_RUN = TrainingRun(steps=2000, batch=16, rate=1e-3, unprompted=0.2)
SEED = 31
EXAM, EXAM_SEED = 64, 5
TRUNK_FIELDS = (
    *("in_channels", "flip_sin_to_cos", "freq_shift", "down_block_types", "mid_block_type"),
    *("block_out_channels", "layers_per_block", "downsample_padding", "mid_block_scale_factor"),
    *("act_fn", "norm_num_groups", "norm_eps", "cross_attention_dim", "attention_head_dim"),
    *("transformer_layers_per_block", "use_linear_projection", "addition_embed_type"),
    *("addition_time_embed_dim", "projection_class_embeddings_input_dim"),
    "resnet_time_scale_shift",
)
"""UNet fields that diffusers' ControlNetModel shares."""


class Outlined(NamedTuple):
    """Drawings, their edges as uint8 [count, height, width], and their prompts."""

    drawings: np.ndarray
    edges: np.ndarray
    prompts: list[str]


def outlined(scenes: list[Scene], seed: int) -> Outlined:
    """Draw each demo scene once, and detect its edges."""
    rng = np.random.default_rng(seed)
    drawings = np.stack([draw(scene, rng) for scene in scenes])
    edges = np.stack([canny(drawing)[..., 0] for drawing in drawings])
    return Outlined(drawings, edges, [scene.prompt for scene in scenes])


def make(base: Path, folder: Path) -> None:
    """Train the demo's ControlNet for the checkpoint `base`, and write it to `folder`."""
    recipe = Sdxl()
    model, vae = finished(recipe, base)
    prompts = Prompts(recipe.tokenizers(base))
    rng = np.random.default_rng(SEED)
    examples = outlined([random_scene(rng, PAIRS_SHARE) for _ in range(COUNT)], SEED)
    latents = encoded(recipe.subject, vae, in_chunks(examples.drawings))
    data = training_data(model, prompts, latents, examples.prompts, examples.edges)
    examine(recipe, model, vae, prompts)
    network = control.untrained(model, CONFIG, seed=0)
    network = control.train(model, network, data, TRAINING_RUN, folder / f"{NAME}.safetensors")
    control.write(network, stored_config(CONFIG), folder / NAME)
    examine(recipe, control.SdxlWithControl(model, network), vae, prompts)


def examine(recipe: Sdxl, model: Any, vae: Any, prompts: Prompts) -> None:
    """Print the scores of a model, with or without ControlNet, on held-out prompts."""
    for kind, pairs in (("one object", False), ("two objects", True)):
        exam = outlined(
            [Scene.parse(prompt) for prompt in held_out_prompts(EXAM, pairs)], EXAM_SEED
        )
        shown = exam.edges if isinstance(model, control.SdxlWithControl) else None
        drawings = sample(recipe, model, vae, prompts, exam.prompts, shown)
        marks = compare(recipe.subject, drawings, exam.drawings, exam.prompts)
        print(kind, *(f"{name} {share:.1%}" for name, share in marks.items()), flush=True)


def stored_config(config: ControlNetConfig) -> dict[str, Any]:
    """Return the contents of diffusers' `config.json` for the demo's ControlNet."""
    return {
        "_class_name": "ControlNetModel",
        "_diffusers_version": DIFFUSERS_VERSION,
        **{name: getattr(config.trunk, name) for name in TRUNK_FIELDS},
        "conditioning_embedding_out_channels": config.conditioning_embedding_out_channels,
    }
