"""Networks that several families share, and their locations in folders and single files.

Source: ComfyUI (comfy/supported_models.py) for the prefixes in files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from models.checkpoint.folder import read_config, read_scheduler
from models.checkpoint.key_mapping import Renames
from models.checkpoint.single_file import VAE_PREFIXES, Naming
from models.flow.load import TRANSFORMER, Network
from models.loading.sources import Reading
from models.sampling.flow_choice import checkpoint_scheduler
from models.sampling.flow_match import FlowMatchEuler
from models.spec.model_spec import ModelSpec
from models.text import mistral, t5
from models.text.chat import Chat
from models.text.mistral import MistralConfig, MistralEncoder
from models.text.qwen3 import Qwen3Config, Qwen3Encoder, renames_of
from models.text.t5 import T5Config
from models.vae.config import VaeConfig
from models.vae.image import AutoencoderKL
from models.vae.key_mapping import RENAMES
from models.vae.original_keys import ORIGINAL_MARK, vae_renames

FamilyPipeline = TypeVar("FamilyPipeline")
Parsed = TypeVar("Parsed")


@runtime_checkable
class ParsedConfig(Protocol):
    """Config of a network, parsed from its `config.json`."""

    @classmethod
    def from_dict(cls: type[Parsed], config: Mapping[str, Any]) -> Parsed:
        """Parse a network's config. Raises: ValueError: an unsupported config."""


Transformer = TypeVar("Transformer", bound=ParsedConfig)
TextEncoder = TypeVar("TextEncoder", bound=ParsedConfig)
Autoencoder = TypeVar("Autoencoder", bound=ParsedConfig)


def read_configs(
    folder: Path,
    chosen: str | None,
    transformer: type[Transformer],
    text_encoder: type[TextEncoder],
    vae: type[Autoencoder],
) -> tuple[Transformer, TextEncoder, Autoencoder, FlowMatchEuler]:
    """Read the configs of a checkpoint's networks as these classes, and its scheduler.

    Args:
        chosen: scheduler in place of one that is not served.

    Raises: ValueError: an unsupported config.
    """
    return (
        transformer.from_dict(read_config(folder, TRANSFORMER)),
        text_encoder.from_dict(read_config(folder, "text_encoder")),
        vae.from_dict(read_config(folder, "vae")),
        checkpoint_scheduler(read_scheduler(folder), chosen),
    )


def transformer(
    folder: Path,
    kind: Callable[..., Any],
    config: Any,
    names: Renames,
    in_files: tuple[Naming, ...],
) -> Network:
    """Describe the transformer of a checkpoint.

    Args:
        names: rename rules of its arrays in the folder.
        in_files: naming schemes in single files.
    """
    return Network(kind, (config,), folder / TRANSFORMER, names, in_files=in_files)


def autoencoder(
    folder: Path, kind: Callable[..., Any], config: Any, names: Renames, in_files: Naming
) -> Network:
    """Describe the autoencoder of a checkpoint; the arguments are those of `transformer`."""
    return Network(kind, (config,), folder / "vae", names, in_files=(in_files,))


def image_autoencoder(folder: Path, config: VaeConfig) -> Network:
    """Describe the `AutoencoderKL` of a checkpoint."""
    naming = Naming(VAE_PREFIXES, ORIGINAL_MARK, vae_renames(config))
    return autoencoder(folder, AutoencoderKL, config, RENAMES, naming)


def chat_encoder(
    folder: Path, kind: Callable[..., Any], arguments: tuple[Any, ...], names: Renames, *files: str
) -> Network:
    """Describe the text encoder of a checkpoint, a chat model.

    Args:
        names: rename rules of its arrays.
        files: names of the model in single files.
    """
    naming = Naming(in_encoders(*files), "model.embed_tokens.weight", names)
    place = folder / "text_encoder"
    return Network(kind, arguments, place, names, by_size=True, in_files=(naming,))


def qwen3_encoder(
    folder: Path, config: Qwen3Config, states: tuple[int, ...], *files: str
) -> Network:
    """Describe the text encoder of a checkpoint, a Qwen3.

    Args:
        states: hidden states whose concatenation is its features.
        files: names of the model in single files.
    """
    return chat_encoder(folder, Qwen3Encoder, (config, states), renames_of(config, states), *files)


def mistral_encoder(
    folder: Path, config: MistralConfig, states: tuple[int, ...], *files: str
) -> Network:
    """Describe the text encoder of a checkpoint, a Mistral; arguments as for `qwen3_encoder`."""
    names = mistral.renames_of(config, states)
    return chat_encoder(folder, MistralEncoder, (config, states), names, *files)


def t5_encoder(place: Path, config: T5Config) -> Network:
    """Describe a text encoder of a checkpoint, a T5.

    Args:
        place: folder of its arrays.
    """
    mark = "encoder.final_layer_norm.weight"
    naming = Naming(in_encoders("t5xxl"), mark, t5.RENAMES)
    return Network(t5.T5Encoder, (config,), place, t5.RENAMES, by_size=True, in_files=(naming,))


def in_encoders(*files: str) -> tuple[str, ...]:
    """Return the key prefixes of text encoders of these names in single files."""
    return tuple(f"text_encoders.{name}.transformer." for name in files)


def chat_pipeline(
    kind: Callable[..., FamilyPipeline],
    folder: Path,
    reading: Reading,
    scheduler: FlowMatchEuler,
    chat: Chat,
    tokenizer: str = "tokenizer",
    **more: Any,
) -> Callable[[ModelSpec, Any], FamilyPipeline]:
    """Return a function that builds a `ChatPipeline` from a spec and networks.

    Args:
        kind: class of the pipeline.
        chat: template of each prompt.
        tokenizer: folder of the tokenizer's files.
        more: further arguments of the pipeline.
    """

    def made(spec: ModelSpec, networks: Any) -> FamilyPipeline:
        read = reading.reader.chat_tokenizer(folder / tokenizer, chat)
        return kind(spec, networks, scheduler, read, reading.vae_tiling, **more)

    return made
