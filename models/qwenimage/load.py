"""A checkpoint folder in diffusers' layout → a `QwenImagePipeline`, every size from its configs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import NamedTuple

from models.checkpoint.config_fields import check_fit
from models.checkpoint.folder import read_config, read_model_index
from models.flow.chat_pipeline import ChatNetworks
from models.flow.load import FamilyCheckpoint, Network
from models.flow.load import load as load_checkpoint
from models.loading.preview import flat_frame_encoder
from models.loading.sources import Reading
from models.qwenimage import prompts
from models.qwenimage.config import QwenImageConfig
from models.qwenimage.edit import QwenImageEditPipeline
from models.qwenimage.key_mapping import RENAMES
from models.qwenimage.network import QwenImageTransformer
from models.qwenimage.pipeline import QwenImagePipeline
from models.qwenimage.single_file import format_of
from models.qwenimage.spec import DRAWING, EDITING, EDITING_SEVERAL, Kind, make_spec
from models.sampling.flow_match import FlowMatchEuler
from models.spec.model_spec import ModelSpec
from models.text.qwen25 import Qwen25Config, Qwen25Encoder, renames_of
from models.vae import video_key_mapping
from models.vae.video import VideoAutoencoder
from models.vae.video_config import VideoVaeConfig
from models.vision.qwen25 import RENAMES as VISION_RENAMES
from models.vision.qwen25 import QwenVisionConfig, QwenVisionModel
from models.vision.qwen_patches import QwenPreprocessor

STATES = (-1,)
"""Hidden states of the text encoder that captions are."""
COLOURS = 3
EDITS = {
    "QwenImageEditPipeline": (EDITING, prompts.ALONE),
    "QwenImageEditInpaintPipeline": (EDITING, prompts.ALONE),
    "QwenImageEditPlusPipeline": (EDITING_SEVERAL, prompts.NUMBERED),
}
"""`_class_name` of checkpoints whose text encoder reads images → what is theirs."""


def read(folder: Path, reading: Reading) -> FamilyCheckpoint[ChatNetworks, QwenImagePipeline]:
    """Read the configs. Raises: ValueError: one that these networks cannot have."""
    config = QwenImageConfig.from_dict(read_config(folder, "transformer"))
    vae = VideoVaeConfig.from_dict(read_config(folder, "vae"))
    text = Qwen25Config.from_dict(read_config(folder, "text_encoder"))
    eyes = eyes_of(folder, text)
    _check_fit(config, vae, text)
    scheduler = FlowMatchEuler.from_dict(read_config(folder, "scheduler"))
    place, names = folder / "text_encoder", renames_of(text, STATES)
    networks = {
        "transformer": Network(QwenImageTransformer, (config,), folder / "transformer", RENAMES),
        "text_encoder": Network(Qwen25Encoder, (text, STATES), place, names, by_size=True),
        "vae": Network(VideoAutoencoder, (vae,), folder / "vae", video_key_mapping.RENAMES),
    }
    if eyes is not None:
        sees = Network(QwenVisionModel, (eyes.config,), place, VISION_RENAMES, by_size=True)
        networks["vision"] = sees
    kind, least = eyes.kind if eyes else DRAWING, 2 if scheduler.shift_terminal else 1

    def pipeline(spec: ModelSpec, networks: ChatNetworks) -> QwenImagePipeline:
        chat = prompts.EDITING if eyes else prompts.DESCRIBING
        tokenizer = reading.reader.qwen_tokenizer(folder / "tokenizer", chat)
        given = (spec, networks, scheduler, tokenizer, reading.vae_tiling)
        if eyes is None:
            return QwenImagePipeline(*given)
        return QwenImageEditPipeline(*given, preprocessor=eyes.preprocessor, showing=eyes.showing)

    return FamilyCheckpoint(
        networks,
        ChatNetworks,
        format_of(vae, names),
        partial(make_spec, vae, kind=kind, min_steps=least),
        pipeline,
        vae.downsampling,
        flat_frame_encoder,
    )


load = partial(load_checkpoint, read)


class Eyes(NamedTuple):
    """Part of a checkpoint that reads images for its text encoder."""

    config: QwenVisionConfig
    preprocessor: QwenPreprocessor
    kind: Kind
    showing: prompts.Showing


def eyes_of(folder: Path, text: Qwen25Config) -> Eyes | None:
    """Return what reads images; None: it edits none. Raises: ValueError: the parts do not fit."""
    name = read_model_index(folder)["_class_name"]
    if name not in EDITS:
        return None
    config = QwenVisionConfig.from_dict(read_config(folder, "text_encoder"))
    preprocessor = QwenPreprocessor.read(folder / "processor")
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
    return Eyes(config, preprocessor, *EDITS[name])


def _check_fit(config: QwenImageConfig, vae: VideoVaeConfig, text: Qwen25Config) -> None:
    """The parts of one checkpoint must fit each other."""
    check_fit(
        ("transformer out_channels", config.out_channels, "vae z_dim", vae.z_dim),
        (
            *("transformer joint_attention_dim", config.joint_attention_dim),
            *("text_encoder hidden_size", text.hidden_size),
        ),
        ("vae input_channels", vae.in_channels, "an image's colours", COLOURS),
        (
            *("vae temperal_downsample's length", len(vae.temperal_downsample)),
            *("that of dim_mult but one", vae.halvings),
        ),
    )
