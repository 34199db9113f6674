"""ControlNets of a model by the names that settings give them: configs, files, and places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.checkpoint.folder import CheckpointError, read_config
from models.checkpoint.hub import resolve
from models.checkpoint.key_mapping import Renames
from models.checkpoint.safetensors import ComponentFiles
from models.loading.sources import ControlSource
from models.sdxl.compatibility import Parts
from models.sdxl.config import UNetConfig
from models.sdxl.control_config import ControlNetConfig, UnionConfig
from models.sdxl.control_file import read_file
from models.sdxl.control_work import share_of
from models.sdxl.controls import NO_CONTROLS, ControlPlaces
from models.sdxl.key_mapping import CONTROL_RENAMES
from models.spec.controls import ControlKind

FILES = (
    "config.json",
    "diffusion_pytorch_model.safetensors",
    "diffusion_pytorch_model-*.safetensors",
    "diffusion_pytorch_model.safetensors.index.json",
)
"""Files of a hub repository that are fetched: those of half precision are the same ones."""

MODES: Mapping[str, int] = {
    "openpose": 0,
    "depth": 1,
    **dict.fromkeys(("hed", "pidi", "scribble", "ted"), 2),
    **dict.fromkeys(("canny", "lineart", "anime_lineart", "mlsd"), 3),
    "normal": 4,
    "segment": 5,
    "tile": 6,
    "repaint": 7,
}
"""Kinds of a union's control images, by its authors' names. Source: xinsir6, ControlNetPlus."""


@dataclass(frozen=True)
class ControlNetFiles:
    """Checkpoint of one ControlNet."""

    config: ControlNetConfig
    place: Path | ComponentFiles
    renames: Renames
    path: Path
    """Folder or file that it is, for fingerprints."""


@dataclass(frozen=True)
class Controls:
    """ControlNets of a model, each once, however many names it has."""

    networks: tuple[ControlNetFiles, ...] = ()
    places: ControlPlaces = NO_CONTROLS
    described: Mapping[str, ControlKind] | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        """Folders and files of all."""
        return tuple(network.path for network in self.networks)


def read_controls(
    sources: Mapping[str, ControlSource], slots: int, parts: Parts, base: Mapping[str, Any]
) -> Controls:
    """Read the configs of a model's ControlNets.

    Args:
        slots: controls that one request may have.
        parts: configs of the model that they steer.
        base: its UNet's, as it lies in the file.

    Raises: CheckpointError: one cannot be read or served, or does not fit; names it.
    """
    if not sources:
        return Controls()
    networks: dict[Path, ControlNetFiles] = {}
    by_name = {}
    for name, source in sources.items():
        try:
            path = _resolved(source.source)
            if path not in networks:
                networks[path] = _read(path, base)
                check_fit(networks[path].config, parts)
            kind = kind_of(source.mode, networks[path].config.union)
        except (ValueError, CheckpointError) as error:
            raise CheckpointError(f"controls.{name}: {error}") from error
        by_name[name] = ([*networks].index(path) + 1, kind)
    found = tuple(networks.values())
    shares = [share_of(network.config, parts.unet) for network in found]
    work = {name: shares[number - 1] for name, (number, _) in by_name.items()}
    described = {
        name: ControlKind(mode=source.mode, work=work[name]) for name, source in sources.items()
    }
    return Controls(found, ControlPlaces(slots, by_name, work), described)


def _resolved(source: str) -> Path:
    """Return the folder or file of a source. Raises: CheckpointError."""
    file = Path(source).expanduser()
    return (file if source and file.is_file() else resolve(source, patterns=FILES)).resolve()


def _read(path: Path, base: Mapping[str, Any]) -> ControlNetFiles:
    """Raises: CheckpointError, ValueError: it cannot be read or served."""
    if path.is_file():
        config, place, renames = read_file(path, base)
        return ControlNetFiles(config, place, renames, path)
    config = ControlNetConfig.from_dict(read_config(path, "."), str(path / "config.json"))
    return ControlNetFiles(config, path, CONTROL_RENAMES, path)


def kind_of(mode: str | None, union: UnionConfig | None) -> int:
    """Return the number of a union's kind; 0 of a ControlNet with one.

    Args:
        mode: name of one of `MODES`, or a number.

    Raises: ValueError: none such, or it is needed, or has no meaning.
    """
    if union is None:
        if mode is not None:
            raise ValueError(f"mode {mode!r} is of a union, and this ControlNet is none")
        return 0
    known = [name for name, number in MODES.items() if number < union.num_control_type]
    if mode is None:
        raise ValueError(f"is a union: say its mode, {', '.join(known)}")
    kind = int(mode) if mode.isdecimal() else MODES.get(mode, union.num_control_type)
    if kind >= union.num_control_type:
        raise ValueError(f"mode {mode!r} is none that it has: {', '.join(known)}")
    return kind


def check_fit(config: ControlNetConfig, parts: Parts) -> None:
    """Check that a ControlNet's states are those of the UNet. Raises: ValueError: names both."""
    trunk, unet = config.trunk, parts.unet
    pairs: Sequence[tuple[str, Any, Any]] = (
        ("block_out_channels", trunk.block_out_channels, unet.block_out_channels),
        ("layers_per_block", _blocks(trunk), _blocks(unet)),
        ("in_channels", trunk.in_channels, unet.out_channels),
        ("addition_time_embed_dim", trunk.addition_time_embed_dim, unet.addition_time_embed_dim),
        (
            "projection_class_embeddings_input_dim",
            trunk.projection_class_embeddings_input_dim,
            unet.projection_class_embeddings_input_dim,
        ),
        ("cross_attention_dim", trunk.text_features, unet.projected_text_features),
    )
    for name, ours, theirs in pairs:
        if ours != theirs and not (name == "cross_attention_dim" and not _attends(trunk)):
            raise ValueError(
                f"its {name} is {ours}, and that of the UNet {theirs}: it is for another model"
            )
    if config.downsampling != parts.vae.downsampling:
        raise ValueError(
            f"it divides the sides of its images by {config.downsampling}, and the VAE by "
            f"{parts.vae.downsampling}: it is for another model"
        )


def _blocks(config: UNetConfig) -> tuple[int, ...]:
    return tuple(level.residual_blocks for level in config.down_levels)


def _attends(config: UNetConfig) -> bool:
    return any(level.depths for level in (*config.down_levels, config.mid_level))
