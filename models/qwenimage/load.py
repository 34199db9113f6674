"""A checkpoint folder in diffusers' layout → a `QwenImagePipeline`, every size from its configs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from jax.typing import DTypeLike

from models.checkpoint.config_fields import check_fit
from models.checkpoint.folder import read_config, read_model_index
from models.checkpoint.safetensors import ComponentFiles
from models.interface.apply_presets import with_presets
from models.loading.abstract import abstract_module
from models.loading.preview import abstract_preview, flat_frame_encoder
from models.loading.sources import AS_IT_IS, Reading
from models.parallel.by_size import placed_by_size
from models.qwenimage import prompts, single_file
from models.qwenimage.config import QwenImageConfig
from models.qwenimage.edit import QwenImageEditPipeline
from models.qwenimage.key_mapping import RENAMES
from models.qwenimage.network import QwenImageTransformer
from models.qwenimage.pipeline import QwenImageNetworks, QwenImagePipeline
from models.qwenimage.spec import DRAWING, EDITING, EDITING_SEVERAL, Kind, make_spec
from models.sampling.flow_match import FlowMatchEuler
from models.spec.quality_presets import LEVERS
from models.text.qwen25 import Qwen25Config, Qwen25Encoder, renames_of
from models.vae import video_key_mapping
from models.vae.config import check_tiling
from models.vae.video import VideoAutoencoder
from models.vae.video_config import VideoVaeConfig
from models.vision.qwen25 import RENAMES as VISION_RENAMES
from models.vision.qwen25 import QwenVisionConfig, QwenVisionModel
from models.vision.qwen_patches import QwenPreprocessor
from models.weights import loader

STATES = (-1,)
"""Hidden states of the text encoder that captions are."""
COLOURS = 3
EDITS = {
    "QwenImageEditPipeline": (EDITING, prompts.ALONE),
    "QwenImageEditInpaintPipeline": (EDITING, prompts.ALONE),
    "QwenImageEditPlusPipeline": (EDITING_SEVERAL, prompts.NUMBERED),
}
"""`_class_name` of checkpoints whose text encoder reads images → what is theirs."""


def load(
    name: str,
    folder: Path,
    dtype: DTypeLike,
    defaults: Mapping[str, Any] | None = None,
    file: Path | None = None,
    reading: Reading = AS_IT_IS,
) -> QwenImagePipeline:
    """Read configs, tokenizer and weights; the weights go straight to the device in `dtype`.

    Args:
        defaults: of request fields, by the operator; they go before the checkpoint's own.
        file: holds the transformer's weights, and those of other networks that are then not read
            from the folder.
        reading: where the arrays go, and what the networks compute in.

    Raises:
        ValueError: a config that these networks cannot have, with the file and the key; or tiles
            that are not whole latents.
        CheckpointError: files that are missing or damaged; arrays that are missing, stray or
            misshapen, all of them at once.
    """
    config = QwenImageConfig.from_dict(read_config(folder, "transformer"))
    vae_config = VideoVaeConfig.from_dict(read_config(folder, "vae"))
    check_tiling(reading.vae_tiling, vae_config.downsampling)
    text_config = Qwen25Config.from_dict(read_config(folder, "text_encoder"))
    eyes = eyes_of(folder, text_config)
    _check_fit(config, vae_config, text_config)
    scheduler = FlowMatchEuler.from_dict(read_config(folder, "scheduler"))
    loaded = reading.networks(
        lambda each: abstract_modules(config, vae_config, text_config, each, eyes and eyes.config),
        dtype,
        _places(folder, file, vae_config, text_config, edits=eyes is not None),
        "transformer",
    )
    preview = reading.reader.preview(*flat_frame_encoder(loaded["vae"]))
    networks = QwenImageNetworks(**loaded, preview=preview)
    sources = (folder,) if file is None else (folder, file)
    kind, least = eyes.kind if eyes else DRAWING, 2 if scheduler.shift_terminal else 1
    spec = make_spec(name, sources, vae_config, defaults or {}, kind, least)
    given = (
        with_presets(spec, folder, LEVERS, reading.qualities, reading.eight_bit),
        networks,
        scheduler,
        reading.reader.qwen_tokenizer(
            folder / "tokenizer", prompts.EDITING if eyes else prompts.DESCRIBING
        ),
        reading.vae_tiling,
    )
    if eyes is None:
        return QwenImagePipeline(*given)
    return QwenImageEditPipeline(*given, preprocessor=eyes.preprocessor, showing=eyes.showing)


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


def _places(
    folder: Path, file: Path | None, vae: VideoVaeConfig, text: Qwen25Config, *, edits: bool
) -> Mapping[str, tuple[Path | ComponentFiles, loader.Renames]]:
    """Return where each network's arrays lie. Raises: CheckpointError: another's file."""
    names = {
        "transformer": RENAMES,
        "text_encoder": renames_of(text, STATES),
        "vae": video_key_mapping.RENAMES,
    }
    own: dict[str, tuple[Path | ComponentFiles, loader.Renames]]
    own = {name: (folder / name, renames) for name, renames in names.items()}
    if edits:
        own["vision"] = (folder / "text_encoder", VISION_RENAMES)
    if file is None:
        return own
    found = single_file.parts(file, vae, names["text_encoder"])
    return {name: found.get(name, place) for name, place in own.items()}


def abstract_modules(
    config: QwenImageConfig,
    vae: VideoVaeConfig,
    text: Qwen25Config,
    dtype: DTypeLike,
    vision: QwenVisionConfig | None = None,
) -> QwenImageNetworks:
    """The networks as shapes alone: what the loader fills, and what a planner compiles."""
    shapes = partial(abstract_module, param_dtype=dtype)
    return QwenImageNetworks(
        transformer=shapes(QwenImageTransformer, config),
        text_encoder=placed_by_size(shapes(Qwen25Encoder, text, STATES)),
        vae=shapes(VideoAutoencoder, vae),
        preview=abstract_preview(vae.z_dim),
        vision=vision and placed_by_size(shapes(QwenVisionModel, vision)),
    )
