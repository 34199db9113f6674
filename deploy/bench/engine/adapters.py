"""Random LoRA adapters for benchmarks, covering all layers of the denoising networks.

They are files that the engine loads like any others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from safetensors.numpy import save_file

from models.adapters.adaptable_layers import names_of
from models.adapters.files.adapter import KernelShape, LayerPosition
from models.adapters.files.name_table import NetworkNames
from models.interface.pipeline import Fields, Pipeline
from models.spec.lora import RequestedLora, always, pages_of

STRENGTH = 0.1
"""Approximate share of a layer's output that an adapter adds."""


class RandomAdapters:
    """Random adapter files, one per network, shared by all rows.

    Rows name them by different digests, so each row has pages of its own.

    Args:
        networks: names of the denoising networks.
        folder: folder for the files.
    """

    def __init__(
        self, pipeline: Pipeline, networks: set[str], rank: int, dtype: str, folder: Path
    ) -> None:
        self._pages = pages_of(rank)
        self._files = {
            network.network: _written(network, rank, dtype, folder)
            for network in names_of(pipeline).networks
            if network.network in networks
        }

    @property
    def bytes(self) -> int:
        """Size in bytes of one row's adapter files."""
        return sum(file.stat().st_size for file in self._files.values())

    def with_adapters(self, fields: Fields, row: int) -> dict[str, Any]:
        """Return the request of a row with adapters that no other row shares."""
        loras = [
            RequestedLora(
                name=network,
                digest=f"{network} {row}",
                pages=self._pages,
                networks=(network,),
                scales=always(1.0),
            )
            for network in self._files
        ]
        return {**fields, "loras": [lora.model_dump(mode="json") for lora in loras]}

    async def find(self, lora: RequestedLora, tenant: str) -> Path:
        """Return an adapter's file; the engine's file lookup."""
        return self._files[lora.name]


def _written(network: NetworkNames, rank: int, dtype: str, folder: Path) -> Path:
    rng = np.random.default_rng(rank)
    arrays = {}
    for name, shape in layers_by_name(network):
        inputs = (shape.in_features, *shape.window)
        out = (shape.out_features, rank, *(1 for _ in shape.window))
        head = f"{network.dotted[0]}{name}.lora_"
        arrays[f"{head}A.weight"] = _drawn(rng, (rank, *inputs), 1 / math.sqrt(math.prod(inputs)))
        arrays[f"{head}B.weight"] = _drawn(rng, out, STRENGTH / math.sqrt(rank))
    file = folder / f"{network.network}.safetensors"
    save_file({key: array.astype(jnp.dtype(dtype)) for key, array in arrays.items()}, file)
    return file


def layers_by_name(network: NetworkNames) -> Iterator[tuple[str, KernelShape]]:
    """Yield each layer once, with the last of its names."""
    last: dict[LayerPosition, tuple[str, KernelShape]] = {}
    for name, layers in network.names.items():
        if len(layers) == 1:
            ((place, shape),) = layers.items()
            last[place] = (name, shape)
    yield from last.values()


def _drawn(rng: np.random.Generator, shape: tuple[int, ...], deviation: float) -> np.ndarray:
    return rng.standard_normal(shape, np.float32) * np.float32(deviation)
