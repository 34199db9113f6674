"""A checkpoint folder in diffusers' layout → a `Flux2Pipeline`, every size from its configs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from jax.typing import DTypeLike

from models.checkpoint.config_fields import check_fit
from models.checkpoint.folder import read_config, read_model_index
from models.checkpoint.safetensors import ComponentFiles
from models.flux2 import single_file
from models.flux2.config import Flux2Config
from models.flux2.key_mapping import RENAMES
from models.flux2.network import Flux2Transformer
from models.flux2.pipeline import Flux2Networks, Flux2Pipeline
from models.flux2.spec import make_spec
from models.interface.apply_presets import with_presets
from models.loading.abstract import abstract_module
from models.loading.preview import abstract_preview, flat_image_encoder
from models.loading.sources import AS_IT_IS, Reading
from models.parallel.by_size import placed_by_size
from models.sampling.flow_match import FlowMatchEuler
from models.spec.quality_presets import LEVERS
from models.text.chat import NOT_THINKING
from models.text.qwen3 import Qwen3Config, Qwen3Encoder, renames_of
from models.vae import key_mapping as vae_weights
from models.vae.batch_normed import STATISTICS, BatchNormedAutoencoder, BatchNormedVaeConfig
from models.vae.config import check_tiling
from models.weights import loader

STATES = (9, 18, 27)
"""Hidden states of the text encoder that the network reads, side by side."""


def load(
    name: str,
    folder: Path,
    dtype: DTypeLike,
    defaults: Mapping[str, Any] | None = None,
    file: Path | None = None,
    reading: Reading = AS_IT_IS,
) -> Flux2Pipeline:
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
    config = Flux2Config.from_dict(read_config(folder, "transformer"))
    vae_config = BatchNormedVaeConfig.from_dict(read_config(folder, "vae"))
    check_tiling(reading.vae_tiling, vae_config.downsampling)
    text_config = Qwen3Config.from_dict(read_config(folder, "text_encoder"))
    states = len(STATES) * text_config.hidden_size
    check_fit(
        ("transformer in_channels", config.in_channels, "vae latents", vae_config.packed_channels),
        ("transformer joint_attention_dim", config.joint_attention_dim, "text_encoder", states),
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
    is_distilled = bool(read_model_index(folder).get("is_distilled", False))
    spec = make_spec(name, sources, vae_config, defaults or {}, is_distilled=is_distilled)
    levers = LEVERS if config.num_layers else LEVERS - {"step_cache"}
    return Flux2Pipeline(
        with_presets(spec, folder, levers, reading.qualities, reading.eight_bit),
        Flux2Networks(**loaded, preview=preview),
        scheduler,
        reading.reader.qwen_tokenizer(folder / "tokenizer", NOT_THINKING),
        reading.vae_tiling,
    )


def _places(
    folder: Path, file: Path | None, vae: BatchNormedVaeConfig, text: Qwen3Config
) -> Mapping[str, tuple[Path | ComponentFiles, loader.Renames]]:
    """Return where each network's arrays lie. Raises: CheckpointError: not a file of FLUX.2's."""
    names = {
        "transformer": RENAMES,
        "text_encoder": renames_of(text, STATES),
        "vae": (*STATISTICS, *vae_weights.RENAMES),
    }
    own = {name: (folder / name, renames) for name, renames in names.items()}
    if file is None:
        return own
    return {**own, **single_file.parts(file, vae, names["text_encoder"])}


def abstract_modules(
    config: Flux2Config, vae: BatchNormedVaeConfig, text: Qwen3Config, dtype: DTypeLike
) -> Flux2Networks:
    """The networks as shapes alone: what the loader fills, and what a planner compiles."""
    shapes = partial(abstract_module, param_dtype=dtype)
    return Flux2Networks(
        transformer=shapes(Flux2Transformer, config),
        text_encoder=placed_by_size(shapes(Qwen3Encoder, text, STATES)),
        vae=shapes(BatchNormedAutoencoder, vae),
        preview=abstract_preview(vae.latent_channels),
    )
