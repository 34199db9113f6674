"""Adapters for parity tests: random changes, file formats, and images by diffusers and by
Atelier.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flax import nnx
from safetensors.torch import save_file

from models import registry
from models.adapters.adaptable_layers import names_of
from models.adapters.banks import page_arrays, page_axis
from models.adapters.files.adapter import Adapter
from models.adapters.files.formats import read
from models.adapters.files.name_table import Names
from models.adapters.install import install_banks
from models.parallel.row_adapters import AdapterPages
from models.spec.lora import Expert, RequestedLora, ScaleInterval
from tests.parity.distances import psnr_db
from tests.parity.programs import Programs

Tensors = dict[str, torch.Tensor]

MIN_DB = 60.0
GREY_LEVELS = 2
"""Pixel bounds, the same as for pipelines without adapters. Rounding alone stays above 80 dB."""
FAR_DB = MIN_DB - 10
"""Upper PSNR of wrong readings, well below any plausible bound."""
BANK_PAGES = 4


@dataclass(frozen=True)
class Change:
    """Change of one of diffusers' layers, with alpha stored separately."""

    down: torch.Tensor
    up: torch.Tensor
    alpha: float

    @property
    def rank(self) -> int:
        return len(self.down)

    @property
    def scaled_up(self) -> torch.Tensor:
        return self.up * (self.alpha / self.rank)


Changes = dict[str, Change]


def random_changes(
    model: torch.nn.Module,
    seed: int,
    rank: int | Callable[[str], int] = 4,
    alpha: float | Callable[[str], float] = 6.0,
    size: float = 0.15,
    only: Callable[[str], bool] = lambda name: True,
) -> Changes:
    """Make random, non-trivial changes for all linear layers and convolutions of a network.

    Args:
        rank, alpha: of all layers, or by a layer's name.
        size: of `up`.
    """
    generator = torch.Generator().manual_seed(seed)
    changes: Changes = {}
    for name, layer in model.named_modules():
        if not isinstance(layer, torch.nn.Linear | torch.nn.Conv2d | torch.nn.Conv3d):
            continue
        if not only(name):
            continue
        ranks = rank(name) if callable(rank) else rank
        inputs = layer.weight.shape[1:]
        down = torch.randn(ranks, *inputs, generator=generator) / inputs.numel() ** 0.5
        up = size * torch.randn(layer.weight.shape[0], ranks, generator=generator)
        window = (1,) * (len(inputs) - 1)
        alpha_of_layer = alpha(name) if callable(alpha) else alpha
        changes[name] = Change(down, up.reshape(*up.shape, *window), alpha_of_layer)
    return changes


def peft(parts: Mapping[str, Changes]) -> Tensors:
    """Tensors in diffusers' format with alpha multiplied in, keyed by component."""
    return {
        f"{part}.{name}.lora_{letter}.weight": array
        for part, changes in parts.items()
        for name, change in changes.items()
        for letter, array in (("A", change.down), ("B", change.scaled_up))
    }


def peft_with_metadata(parts: Mapping[str, Changes]) -> tuple[Tensors, dict[str, str]]:
    """Tensors in diffusers' format, and PEFT's config with the alphas as metadata."""
    tensors = {
        f"{part}.{name}.lora_{letter}.weight": array
        for part, changes in parts.items()
        for name, change in changes.items()
        for letter, array in (("A", change.down), ("B", change.up))
    }
    config: dict[str, Any] = {}
    for part, changes in parts.items():
        first = next(iter(changes.values()))
        config |= {
            f"{part}.r": first.rank,
            f"{part}.lora_alpha": first.alpha,
            f"{part}.target_modules": list(changes),
            f"{part}.rank_pattern": {f"^{k}": c.rank for k, c in changes.items()},
            f"{part}.alpha_pattern": {k: c.alpha for k, c in changes.items()},
        }
    return tensors, {"format": "pt", "lora_adapter_metadata": json.dumps(config)}


def kohya(prefix: str, changes: Changes, name: Callable[[str], str] = str) -> Tensors:
    """Tensors in the format of kohya's scripts: names with underscores, and an alpha per layer.

    Args:
        name: of a layer, with dots.
    """
    return {
        f"{prefix}_{name(layer).replace('.', '_')}.{ending}": array.contiguous()
        for layer, change in changes.items()
        for ending, array in (
            ("lora_down.weight", change.down),
            ("lora_up.weight", change.up),
            ("alpha", torch.tensor(change.alpha)),
        )
    }


def write(tensors: Tensors, file: Path, metadata: dict[str, str] | None = None) -> Path:
    save_file({key: array.contiguous().clone() for key, array in tensors.items()}, file, metadata)
    return file


@dataclass(frozen=True)
class LoadedAdapter:
    """An adapter's file, with the requested scale and expert."""

    file: Path
    scale: float = 0.8
    expert: Expert | None = None


def diffusers_pixels(
    pipe: Any, adapters: Sequence[LoadedAdapter], run: Callable[[Any], np.ndarray]
) -> np.ndarray:
    """Generate diffusers' pixels (uint8) with these adapters, then unload them."""
    names = [f"adapter_{number}" for number in range(len(adapters))]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PEFT warns about a second adapter
            for name, adapter in zip(names, adapters, strict=True):
                _load(pipe, name, adapter)
        if adapters:
            pipe.set_adapters(names, [adapter.scale for adapter in adapters])
        return run(pipe)
    finally:
        pipe.unload_lora_weights()
        _unfuse_projections(pipe)


def _unfuse_projections(pipe: Any) -> None:
    """Split projections again that diffusers fuses for some LoKr files, and does not split itself.

    Later adapters of the single projections would otherwise have no effect in diffusers.
    """
    network = getattr(pipe, "transformer", None)
    for module in [] if network is None else network.modules():
        if getattr(module, "fused_projections", False):
            module.unfuse_projections()


def _load(pipe: Any, name: str, adapter: LoadedAdapter) -> None:
    extra = {"load_into_transformer_2": True} if adapter.expert == "low" else {}
    file = {"weight_name": adapter.file.name, "adapter_name": name}
    pipe.load_lora_weights(adapter.file.parent, **file, **extra)


class AtelierRunner:
    """A checkpoint loaded by Atelier with banks. Its programs compile once for any bank
    contents.
    """

    def __init__(self, folder: Path, pages: int = BANK_PAGES) -> None:
        self.pipeline: Any = registry.load("tiny", str(folder), "float32", {})
        self.names: Names = names_of(self.pipeline)
        install_banks(self.pipeline, pages)
        self.programs = Programs(self.pipeline)

    def read(self, adapter: LoadedAdapter) -> Adapter:
        return read(adapter.file, self.names, adapter.expert)

    def pixels(
        self,
        request: Mapping[str, Any],
        adapters: Sequence[LoadedAdapter],
        images: Mapping[str, bytes] | None = None,
    ) -> np.ndarray:
        """Generate pixels with these adapters on consecutive pages of the banks."""
        contents = [self.read(adapter) for adapter in adapters]
        loras = [
            _asked(adapter, content) for adapter, content in zip(adapters, contents, strict=True)
        ]
        fields = {**self.pipeline.spec.defaults, **request, "loras": loras}
        prepared = self.pipeline.prepare(fields, images or {})
        weights = filled(self.pipeline, contents)
        return np.asarray(self.programs.drawn(prepared, weights)[1])


def _asked(loaded: LoadedAdapter, adapter: Adapter) -> dict[str, Any]:
    return RequestedLora(
        name=loaded.file.stem,
        digest=loaded.file.stem,
        pages=adapter.pages,
        networks=tuple(adapter.networks),
        scales=(ScaleInterval(start=0, stop=1, scale=loaded.scale),),
        has_magnitudes=adapter.has_magnitudes,
    ).model_dump()


def filled(pipeline: Any, adapters: Iterable[Adapter]) -> Any:
    """The pipeline's weights, with these adapters in the banks from the first page on."""
    weights, first = pipeline.weights, 0
    for adapter in adapters:
        for network, changes in adapter.networks.items():
            state = getattr(weights, network)
            module = nnx.merge(getattr(pipeline.graphs, network), state)
            arrays = page_arrays(module, changes, adapter.pages, adapter.has_magnitudes)
            weights = weights._replace(**{network: _with_pages(state, arrays, first)})
        first += adapter.pages
    return weights


def _with_pages(state: Any, arrays: Mapping[str, np.ndarray], first: int) -> Any:
    flat = []
    for path, leaf in nnx.to_flat_state(state):
        array = arrays.get(".".join(map(str, path)))
        if isinstance(leaf, AdapterPages) and array is not None:
            axis, bank = page_axis(leaf), np.array(leaf.get_value())
            pages = (slice(None),) * axis + (slice(first, first + array.shape[axis]),)
            bank[pages] = array
            leaf = leaf.replace(bank)
        flat.append((path, leaf))
    return nnx.from_flat_state(flat)


def assert_same(output: np.ndarray, expected: np.ndarray, record: Callable[..., None]) -> None:
    levels = int(np.abs(output.astype(int) - expected).max())
    decibels = psnr_db(output, expected)
    record("psnr_db", decibels)
    record("grey_levels", levels)
    print(f"{decibels:.1f} dB, {levels}")
    assert expected.std() > 10, "a flat image proves nothing"
    assert decibels >= MIN_DB and levels <= GREY_LEVELS


def assert_far(output: np.ndarray, expected: np.ndarray) -> None:
    print(f"{psnr_db(output, expected):.1f} dB")
    assert psnr_db(output, expected) < FAR_DB


def without(tensors: Tensors, *parts: str) -> Tensors:
    """The tensors whose keys contain none of these parts."""
    return {key: array for key, array in tensors.items() if not any(p in key for p in parts)}


def turned(changes: Changes) -> Changes:
    """Swap up and down in the changes where their sizes allow it."""
    return {
        name: replace(change, down=change.up.T.contiguous(), up=change.down.T.contiguous())
        if change.down.ndim == 2 and change.down.shape[1] == change.up.shape[0]
        else change
        for name, change in changes.items()
    }
