"""Loads a `QwenImageEditPipeline`, including the vision tower of its text encoder."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from models.checkpoint.config_fields import check_fit
from models.checkpoint.folder import read_config, read_model_index
from models.checkpoint.single_file import Naming
from models.flow import parts
from models.flow.chat_pipeline import ChatNetworks
from models.flow.load import FamilyCheckpoint, Network, load_checkpoint
from models.loading.sources import Reading
from models.qwenimage.edit.pipeline import QwenImageEditPipeline
from models.qwenimage.edit.prompts import CHAT, NUMBERED, SINGLE
from models.qwenimage.edit.spec import EDITING, EDITING_SEVERAL
from models.qwenimage.family import EDIT, EDIT_INPAINT, EDIT_PLUS
from models.qwenimage.load import COLOURS, ENCODER, read_as
from models.qwenimage.pipeline import QwenImagePipeline
from models.text.qwen25 import Qwen25Config
from models.vision.qwen25 import RENAMES, QwenVisionConfig, QwenVisionModel
from models.vision.qwen_patches import QwenPreprocessor

EDITS = {
    EDIT: (EDITING, SINGLE),
    EDIT_INPAINT: (EDITING, SINGLE),
    EDIT_PLUS: (EDITING_SEVERAL, NUMBERED),
}
"""`_class_name` of checkpoints → spec kind and chat format."""


def read(folder: Path, reading: Reading) -> FamilyCheckpoint[ChatNetworks, QwenImagePipeline]:
    """Read the configs of a Qwen-Image-Edit checkpoint. Raises: ValueError: unsupported."""
    kind, prompt_format = EDITS[read_model_index(folder)["_class_name"]]
    preprocessor = QwenPreprocessor.read(folder / "processor")
    pipeline = partial(
        QwenImageEditPipeline, preprocessor=preprocessor, prompt_format=prompt_format
    )
    checkpoint = read_as(folder, reading, kind, pipeline, CHAT)
    tower = vision(folder, preprocessor)
    return replace(checkpoint, networks={**checkpoint.networks, "vision": tower})


load = partial(load_checkpoint, read)


def vision(folder: Path, preprocessor: QwenPreprocessor) -> Network:
    """Return the vision tower, whose arrays are stored with the text encoder's.

    Raises: ValueError: the configs do not match.
    """
    fields = read_config(folder, "text_encoder")
    text, config = Qwen25Config.from_dict(fields), QwenVisionConfig.from_dict(fields)
    _check_fit(config, preprocessor, text)
    naming = Naming(parts.in_encoders(ENCODER), "visual.merger.ln_q.weight", RENAMES)
    place = folder / "text_encoder"
    return Network(QwenVisionModel, (config,), place, RENAMES, by_size=True, in_files=(naming,))


def _check_fit(
    config: QwenVisionConfig, preprocessor: QwenPreprocessor, text: Qwen25Config
) -> None:
    """Check that the sizes of vision tower, preprocessor and text encoder match."""
    pairs = (
        ("patch_size", "patch_size"),
        ("spatial_merge_size", "merge_size"),
        ("temporal_patch_size", "temporal_patch_size"),
    )
    check_fit(
        (
            *("vision_config out_hidden_size", config.out_hidden_size),
            *("hidden_size", text.hidden_size),
        ),
        ("vision_config in_channels", config.in_channels, "an image's colours", COLOURS),
        *(
            (f"vision_config {a}", getattr(config, a), f"processor {b}", getattr(preprocessor, b))
            for a, b in pairs
        ),
    )
    pairs_of_head = text.decoder.head_dim // 2
    if (len(text.mrope_section), sum(text.mrope_section)) != (3, pairs_of_head):
        raise ValueError(
            f"text_encoder/config.json: mrope_section {text.mrope_section} must be three that add "
            f"up to {pairs_of_head}, to read images"
        )
