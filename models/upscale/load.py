"""Loading of upscalers from files."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp

from models.checkpoint.key_mapping import Renames
from models.checkpoint.safetensors import ComponentFiles
from models.loading.abstract import abstract_module
from models.loading.sources import check_finite
from models.spec.notices import collected_notices
from models.spec.upscalers import Upscaler
from models.upscale.config import Style, read_shapes
from models.upscale.network import RrdbNet
from models.weights import loader


@dataclass(frozen=True)
class LoadedUpscaler:
    """Upscaler with its weights on a device."""

    spec: Upscaler
    network: RrdbNet
    device: jax.Device
    warnings: tuple[str, ...] = ()
    """Arrays of the file that were ignored."""

    @property
    def unshuffle(self) -> int:
        """Factor by which an input image's sides must be divisible."""
        return self.network.config.unshuffle


def load_upscaler(file: Path, dtype: str, tile: int, device: jax.Device) -> LoadedUpscaler:
    """Load an RRDBNet with any of the three naming schemes.

    Args:
        dtype: of its weights and computation.
        tile: side of the tiles, in pixels.

    Raises: CheckpointError: unreadable or another network; contains the remedy.
    """
    read = read_shapes(file)
    module = abstract_upscaler(file, dtype)
    sharding = jax.sharding.SingleDeviceSharding(device)
    with collected_notices() as notices:
        network = loader.load(
            module,
            ComponentFiles(f"upscaler in {file.name}", (file,), read.prefix),
            renames_of(read.style),
            sharding=lambda path, leaf: sharding,
        )
    check_finite(file.name, network)
    spec = Upscaler(scale=read.config.scale, tile=tile, digest=_digest(file))
    return LoadedUpscaler(spec, network, device, tuple(notices))


def abstract_upscaler(file: Path, dtype: str) -> RrdbNet:
    """Return the upscaler's network of a file, with shapes only. Raises: CheckpointError."""
    return abstract_module(RrdbNet, read_shapes(file).config, param_dtype=jnp.dtype(dtype))


def renames_of(style: Style) -> Renames:
    """Return the rename table of an RRDBNet's naming scheme."""

    def both(name: str, module: str, index: str = "") -> Renames:
        return (
            (rf"{name}\.weight", f"{module}.kernel{index}"),
            (rf"{name}\.bias", f"{module}.bias{index}"),
        )

    return (
        *both(style.block + style.dense, r"body.rdb\2.conv\3", r"[\1]"),
        *both(style.first, "conv_first"),
        *both(style.body, "conv_body"),
        *(rule for i, up in enumerate(style.up) for rule in both(up, f"conv_up.{i}")),
        *both(style.high, "conv_hr"),
        *both(style.last, "conv_last"),
    )


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
