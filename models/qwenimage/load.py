"""A checkpoint folder in diffusers' layout → a `QwenImagePipeline`, every size from its configs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from jax.typing import DTypeLike

from models.checkpoint.config_fields import check_fit
from models.checkpoint.folder import read_config
from models.checkpoint.safetensors import ComponentFiles
from models.interface.apply_presets import with_presets
from models.loading.abstract import abstract_module
from models.loading.preview import abstract_preview, flat_frame_encoder
from models.loading.sources import AS_IT_IS, Reading
from models.parallel.by_size import placed_by_size
from models.qwenimage import single_file
from models.qwenimage.config import QwenImageConfig
from models.qwenimage.key_mapping import RENAMES
from models.qwenimage.network import QwenImageTransformer
from models.qwenimage.pipeline import QwenImageNetworks, QwenImagePipeline
from models.qwenimage.prompts import DESCRIBING
from models.qwenimage.spec import make_spec
from models.sampling.flow_match import FlowMatchEuler
from models.spec.quality_presets import LEVERS
from models.text.qwen25 import Qwen25Config, Qwen25Encoder, renames_of
from models.vae import video_key_mapping
from models.vae.config import check_tiling
from models.vae.video import VideoAutoencoder
from models.vae.video_config import VideoVaeConfig
from models.weights import loader

STATES = (-1,)
"""Hidden states of the text encoder that captions are."""
COLOURS = 3


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
    _check_fit(config, vae_config, text_config)
    scheduler = FlowMatchEuler.from_dict(read_config(folder, "scheduler"))
    loaded = reading.networks(
        partial(abstract_modules, config, vae_config, text_config),
        dtype,
        _places(folder, file, vae_config, text_config),
        "transformer",
    )
    preview = reading.reader.preview(*flat_frame_encoder(loaded["vae"]))
    sources = (folder,) if file is None else (folder, file)
    spec = make_spec(name, sources, vae_config, defaults or {})
    return QwenImagePipeline(
        with_presets(spec, folder, LEVERS, reading.qualities, reading.eight_bit),
        QwenImageNetworks(**loaded, preview=preview),
        scheduler,
        reading.reader.qwen_tokenizer(folder / "tokenizer", DESCRIBING),
        reading.vae_tiling,
    )


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
    folder: Path, file: Path | None, vae: VideoVaeConfig, text: Qwen25Config
) -> Mapping[str, tuple[Path | ComponentFiles, loader.Renames]]:
    """Return where each network's arrays lie. Raises: CheckpointError: another's file."""
    names = {
        "transformer": RENAMES,
        "text_encoder": renames_of(text, STATES),
        "vae": video_key_mapping.RENAMES,
    }
    own = {name: (folder / name, renames) for name, renames in names.items()}
    if file is None:
        return own
    return {**own, **single_file.parts(file, vae, names["text_encoder"])}


def abstract_modules(
    config: QwenImageConfig, vae: VideoVaeConfig, text: Qwen25Config, dtype: DTypeLike
) -> QwenImageNetworks:
    """The networks as shapes alone: what the loader fills, and what a planner compiles."""
    shapes = partial(abstract_module, param_dtype=dtype)
    return QwenImageNetworks(
        transformer=shapes(QwenImageTransformer, config),
        text_encoder=placed_by_size(shapes(Qwen25Encoder, text, STATES)),
        vae=shapes(VideoAutoencoder, vae),
        preview=abstract_preview(vae.z_dim),
    )
