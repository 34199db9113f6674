"""Loads a Qwen-Image 2.1 pipeline; it reads images if the checkpoint has an image processor."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

from models.checkpoint.config_fields import check_fit
from models.checkpoint.folder import read_config
from models.flow.chat_pipeline import ChatNetworks
from models.flow.load import FamilyCheckpoint, Network, load_checkpoint
from models.loading.sources import Reading
from models.qwenimage21.edit.pipeline import QwenImage21EditPipeline
from models.qwenimage21.edit.spec import EDITING
from models.qwenimage21.load import read_as
from models.qwenimage21.pipeline import QwenImage21Pipeline
from models.qwenimage21.spec import GENERATION
from models.text.qwen3_vl import Qwen3VLConfig
from models.vision.preprocess import FILE
from models.vision.qwen3_vl import RENAMES, Qwen3VisionConfig, Qwen3VisionModel
from models.vision.qwen_patches import QwenPreprocessor

PROCESSOR, MEMBER = "processor_config.json", "image_processor"
"""File of transformers 5 that may contain the preprocessor's config, under this key."""


def read(folder: Path, reading: Reading) -> FamilyCheckpoint[ChatNetworks, QwenImage21Pipeline]:
    """Read the configs of a Qwen-Image 2.1 editing checkpoint. Raises: ValueError: unsupported."""
    preprocessor = _preprocessor(folder / "processor")
    if preprocessor is None:
        return read_as(folder, reading, GENERATION, QwenImage21Pipeline)
    pipeline = partial(QwenImage21EditPipeline, preprocessor=preprocessor)
    checkpoint = read_as(folder, reading, EDITING, pipeline)
    tower = _vision(folder, preprocessor, checkpoint.downsampling)
    return replace(checkpoint, networks={**checkpoint.networks, "vision": tower})


load = partial(load_checkpoint, read)


def _vision(folder: Path, preprocessor: QwenPreprocessor, downsampling: int) -> Network:
    """Return the vision tower, whose arrays are stored with the text encoder's.

    Raises: ValueError: the configs do not match.
    """
    fields = read_config(folder, "text_encoder")
    text, config = Qwen3VLConfig.from_dict(fields), Qwen3VisionConfig.from_dict(fields)
    token = preprocessor.patch_size * preprocessor.merge_size
    check_fit(
        ("vision_config out_hidden_size", config.out_hidden_size, "hidden_size", text.hidden_size),
        ("pixels of the processor's tokens", token, "of two latents", 2 * downsampling),
    )
    return Network(Qwen3VisionModel, (config,), folder / "text_encoder", RENAMES, by_size=True)


def _preprocessor(folder: Path) -> QwenPreprocessor | None:
    """Read the image preprocessor in a `processor` folder; None: it has none."""
    if (folder / FILE).is_file():
        return QwenPreprocessor.read(folder)
    file = folder / PROCESSOR
    config = json.loads(file.read_text("utf-8")).get(MEMBER) if file.is_file() else None
    return None if config is None else QwenPreprocessor.from_dict(config)
