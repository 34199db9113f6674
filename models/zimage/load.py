"""A checkpoint folder in diffusers' layout → a `ZImagePipeline`, every size from its configs."""

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
from models.loading.preview import abstract_preview, flat_image_encoder
from models.loading.sources import AS_IT_IS, Reading
from models.parallel.by_size import placed_by_size
from models.sampling.flow_match import FlowMatchEuler
from models.spec.quality_presets import LEVERS
from models.text.chat import THINKING
from models.text.qwen3 import Qwen3Config, Qwen3Encoder, renames_of
from models.vae import key_mapping as vae_weights
from models.vae.config import VaeConfig, check_tiling
from models.vae.image import AutoencoderKL
from models.weights import loader
from models.zimage import single_file
from models.zimage.config import ZImageConfig
from models.zimage.key_mapping import RENAMES
from models.zimage.network import ZImageTransformer
from models.zimage.pipeline import ZImageNetworks, ZImagePipeline
from models.zimage.spec import make_spec

STATES = (-2,)
"""Hidden states of the text encoder that captions are."""


def load(
    name: str,
    folder: Path,
    dtype: DTypeLike,
    defaults: Mapping[str, Any] | None = None,
    file: Path | None = None,
    reading: Reading = AS_IT_IS,
) -> ZImagePipeline:
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
    config = ZImageConfig.from_dict(read_config(folder, "transformer"))
    vae_config = VaeConfig.from_dict(read_config(folder, "vae"))
    check_tiling(reading.vae_tiling, vae_config.downsampling)
    text_config = Qwen3Config.from_dict(read_config(folder, "text_encoder"))
    channels = ("transformer in_channels", config.in_channels)
    features = ("transformer cap_feat_dim", config.cap_feat_dim)
    check_fit(
        (*channels, "vae latent_channels", vae_config.latent_channels),
        (*features, "text_encoder hidden_size", text_config.hidden_size),
    )
    scheduler = FlowMatchEuler.from_dict(read_config(folder, "scheduler"))
    loaded = reading.networks(
        partial(abstract_modules, config, vae_config, text_config),
        dtype,
        _places(folder, file, vae_config, text_config),
        "transformer",
    )
    preview = reading.reader.preview(*flat_image_encoder(loaded["vae"]))
    sources = (folder,) if file is None else (folder, file)
    spec = make_spec(name, sources, config, vae_config, scheduler, defaults or {})
    return ZImagePipeline(
        with_presets(spec, folder, LEVERS, reading.qualities, reading.eight_bit),
        ZImageNetworks(**loaded, preview=preview),
        scheduler,
        reading.reader.qwen_tokenizer(folder / "tokenizer", THINKING),
        reading.vae_tiling,
    )


def _places(
    folder: Path, file: Path | None, vae: VaeConfig, text: Qwen3Config
) -> Mapping[str, tuple[Path | ComponentFiles, loader.Renames]]:
    """Return where each network's arrays lie. Raises: CheckpointError: not a file of Z-Image's."""
    names = {
        "transformer": RENAMES,
        "text_encoder": renames_of(text, STATES),
        "vae": vae_weights.RENAMES,
    }
    own = {name: (folder / name, renames) for name, renames in names.items()}
    if file is None:
        return own
    return {**own, **single_file.parts(file, vae, names["text_encoder"])}


def abstract_modules(
    config: ZImageConfig, vae: VaeConfig, text: Qwen3Config, dtype: DTypeLike
) -> ZImageNetworks:
    """The networks as shapes alone: what the loader fills, and what a planner compiles."""
    shapes = partial(abstract_module, param_dtype=dtype)
    return ZImageNetworks(
        transformer=shapes(ZImageTransformer, config),
        text_encoder=placed_by_size(shapes(Qwen3Encoder, text, STATES)),
        vae=shapes(AutoencoderKL, vae),
        preview=abstract_preview(vae.latent_channels),
    )
