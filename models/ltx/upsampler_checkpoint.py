"""Locates a model's latent upsampler, in its checkpoint or elsewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from models.checkpoint.config_fields import check_fit
from models.checkpoint.folder import CheckpointError, UnsupportedCheckpoint, read_config
from models.checkpoint.hub import resolve, single_file
from models.checkpoint.safetensors import ComponentFiles
from models.checkpoint.single_file import shapes_of
from models.flow.load import Network
from models.ltx.key_mapping import LATENT_UPSAMPLER
from models.ltx.latent_upsampler import LatentUpsampler
from models.ltx.latent_upsampler_config import SCALES, LatentUpsamplerConfig
from models.ltx.second_stage import NAME

CONFIG = "config.json"
UP = ("upsampler.0.weight", "upsampler.conv.weight")
"""Keys of the latent upsampler's resampling convolution."""
BLOCK = re.compile(r"res_blocks\.\d+\.conv1\.weight")
PATTERNS = (CONFIG, "diffusion_pytorch_model*", f"{NAME}/*")
"""Files to download from a hub repository that may contain more than the upsampler."""


class UpsamplerCheckpoint(NamedTuple):
    """Latent upsampler on disk, before its weights are loaded."""

    config: LatentUpsamplerConfig
    place: Path | ComponentFiles

    @property
    def network(self) -> Network:
        """Latent upsampler as a loadable network of the checkpoint."""
        arguments = (self.config,)
        return Network(LatentUpsampler, arguments, self.place, LATENT_UPSAMPLER, by_size=True)

    @property
    def paths(self) -> tuple[Path, ...]:
        """Folder or files that identify the upsampler in fingerprints."""
        return (self.place,) if isinstance(self.place, Path) else self.place.files


def find_upsampler(
    folder: Path, source: str | None, latent_channels: int
) -> UpsamplerCheckpoint | None:
    """Return a model's latent upsampler; None without one.

    Args:
        folder: the model's checkpoint.
        source: folder, hub id or single file; None: the checkpoint's, if present.
        latent_channels: latent channels of the model.

    Raises:
        ValueError: an unsupported config, or a config for another model's latents.
        CheckpointError: `source` contains no upsampler.
    """
    if source is None and not (folder / NAME / CONFIG).is_file():
        return None
    checkpoint = _of_folder(folder / NAME) if source is None else _of_source(source)
    check_fit((f"{NAME} in_channels", checkpoint.config.in_channels, "latents", latent_channels))
    return checkpoint


def _of_source(source: str) -> UpsamplerCheckpoint:
    if file := single_file(source):
        return _of_file(file)
    folder = resolve(source, patterns=PATTERNS)
    for place in (folder / NAME, folder):
        if (place / CONFIG).is_file():
            return _of_folder(place)
    raise CheckpointError(f"{source}: no {NAME}/{CONFIG} and no {CONFIG} of one there")


def _of_folder(folder: Path) -> UpsamplerCheckpoint:
    config = LatentUpsamplerConfig.from_dict(read_config(folder.parent, folder.name))
    return UpsamplerCheckpoint(config, folder)


def _of_file(file: Path) -> UpsamplerCheckpoint:
    """Infer the config from array shapes of a file without a config, such as the original ones."""
    shapes = shapes_of(file)
    enter = shapes.get("initial_conv.weight", ())
    up = next((shapes[key] for key in UP if key in shapes), ())
    scales = {scale.numerator**2: name for name, scale in SCALES.items()}
    scale = scales.get(up[0] // up[1] if up else 0)
    if len(enter) != 5 or len(up) != 4 or scale is None:
        raise UnsupportedCheckpoint(
            f"{file}: no network that enlarges rows and columns of latents; ltx-2-spatial-upscaler "
            "files are"
        )
    config = LatentUpsamplerConfig(
        in_channels=enter[1],
        mid_channels=enter[0],
        num_blocks_per_stage=sum(BLOCK.fullmatch(key) is not None for key in shapes),
        rational_spatial_scale=scale,
    )
    return UpsamplerCheckpoint(config, ComponentFiles(file.name, (file,)))
