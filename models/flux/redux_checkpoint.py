"""Loads Redux from a diffusers folder, or from a file of its layers and an image encoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from models.checkpoint.folder import CheckpointError, read_config
from models.checkpoint.hub import PATTERNS, resolve, resolve_file, single_file
from models.checkpoint.safetensors import ComponentFiles
from models.flow.load import Network
from models.flux.redux import RENAMES, ReduxConfig, ReduxImageEncoder
from models.loading.sources import ImagePromptSource
from models.spec.image_prompts import ImagePrompt
from models.vision import siglip
from models.vision.preprocess import SIGLIP, ClipPreprocessor

ENCODER_FILES = ("*.json", "*.safetensors")
"""Files to download from an image encoder's repository."""


@dataclass(frozen=True)
class ReduxCheckpoint:
    """Configs of a Redux image prompt model, and the location of its arrays."""

    name: str
    """Name of the image prompt in requests."""
    config: ReduxConfig
    siglip: siglip.SiglipVisionConfig
    preprocessor: ClipPreprocessor
    networks: Mapping[str, Network]
    """Networks that Redux adds to a Flux pipeline, by name."""
    files: tuple[Path, ...]
    """Folders and files of the Redux checkpoint."""

    @property
    def image_prompts(self) -> Mapping[str, ImagePrompt]:
        """Image prompt networks of the checkpoint by name, for its spec."""
        return {self.name: ImagePrompt(tokens=self.siglip.tokens, summed=True)}

    @classmethod
    def read(cls, sources: Mapping[str, ImagePromptSource], joint: int) -> ReduxCheckpoint | None:
        """Read the configs; None without image prompt sources.

        Args:
            joint: width of T5's embeddings.

        Raises:
            CheckpointError: the checkpoint is missing or incomplete, or there are several.
            ValueError: the configs do not match.
        """
        if not sources:
            return None
        if len(sources) > 1:
            raise CheckpointError(
                f"image_prompts: a Flux has one, not {', '.join(sorted(sources))}"
            )
        ((name, source),) = sources.items()
        checkpoint = _of_file(name, source, joint) if _is_file(source) else _of_folder(name, source)
        _check_fit(checkpoint, joint)
        return checkpoint


def _is_file(source: ImagePromptSource) -> bool:
    return source.file is not None or single_file(source.source) is not None


def _of_folder(name: str, source: ImagePromptSource) -> ReduxCheckpoint:
    """Read a folder in diffusers' layout; the image encoder may be in another folder."""
    folder = resolve(source.source)
    encoder, preprocessor = folder / "image_encoder", folder / "feature_extractor"
    if source.encoder is not None:
        encoder = preprocessor = resolve(source.encoder, patterns=ENCODER_FILES)
    config = ReduxConfig.from_dict(read_config(folder, "image_embedder"))
    return _checkpoint(name, config, folder / "image_embedder", (encoder, preprocessor))


def _of_file(name: str, source: ImagePromptSource, joint: int) -> ReduxCheckpoint:
    """Read the original file, whose sizes are inferred from the adjacent networks."""
    if source.encoder is None:
        raise CheckpointError(
            f"image_prompts.{name}: a file has no image encoder; name one by encoder, such as "
            "google/siglip-so400m-patch14-384"
        )
    if source.file is None:
        file = resolve_file(source.source)
    else:
        file = resolve(source.source, patterns=(*PATTERNS, source.file)) / source.file
    encoder = resolve(source.encoder, patterns=ENCODER_FILES)
    width = siglip.SiglipVisionConfig.from_dict(read_config(encoder.parent, encoder.name))
    config = ReduxConfig(width.hidden_size, joint)
    files = ComponentFiles(f"image_embedder in {file.name}", (file,))
    return _checkpoint(name, config, files, (encoder, encoder))


def _checkpoint(
    name: str,
    config: ReduxConfig,
    embedder: Path | ComponentFiles,
    encoder: tuple[Path, Path],
) -> ReduxCheckpoint:
    """Build the description of a Redux checkpoint.

    Args:
        encoder: folders of the image encoder and of its preprocessor's config.
    """
    folder, preprocessor = encoder
    files = embedder.files if isinstance(embedder, ComponentFiles) else (embedder,)
    vision = siglip.SiglipVisionConfig.from_dict(read_config(folder.parent, folder.name))
    reader, embeds = siglip.SiglipVisionModel, ReduxImageEncoder
    return ReduxCheckpoint(
        name,
        config,
        vision,
        ClipPreprocessor.read(preprocessor, SIGLIP),
        {
            "image_encoder": Network(reader, (vision,), folder, siglip.RENAMES, by_size=True),
            "image_embedder": Network(embeds, (config,), embedder, RENAMES, by_size=True),
        },
        tuple(dict.fromkeys((*files, folder, preprocessor))),
    )


def _check_fit(redux: ReduxCheckpoint, joint: int) -> None:
    image_size, side = redux.siglip.image_size, redux.preprocessor.size
    pairs = (
        (
            "redux_dim",
            redux.config.redux_dim,
            "SigLIP's hidden_size",
            redux.siglip.hidden_size,
        ),
        ("txt_in_features", redux.config.txt_in_features, "joint_attention_dim", joint),
        ("the preprocessor's size", side, "SigLIP's image_size", (image_size, image_size)),
    )
    for field, a, other, b in pairs:
        if a != b:
            raise ValueError(
                f"image_prompts.{redux.name}: {field} is {a}, but {other} is {b}: the parts do not "
                "fit"
            )
