"""Adapters for parity tests: made at random, written in each form, drawn by diffusers and by us."""

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
from models.adapters.banks import page_arrays, page_axis
from models.adapters.files.adapter import Adapter
from models.adapters.files.formats import read
from models.adapters.files.names import Names
from models.adapters.install import install_banks
from models.adapters.names_of import names_of
from models.parallel.row_adapters import AdapterPages
from models.spec.lora import Expert, RequestedLora, ScaleInterval
from tests.parity.programs import Programs

Tensors = dict[str, torch.Tensor]

LEAST_DB = 60.0
GREY_LEVELS = 2
"""Bounds of pixels, as those of pipelines without adapters: rounding alone stays above 80 dB."""
FAR_DB = LEAST_DB - 10
"""What is read wrongly lies below: no bound that one might settle on would let it pass."""
BANK_PAGES = 4


@dataclass(frozen=True)
class Change:
    """Change of one of diffusers' layers, alpha apart."""

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
    """Changes of all linear layers and convolutions of a network, far from trivial.

    Args:
        rank, alpha: of all layers, or by a layer's name.
        size: of `up`.
    """
    generator = torch.Generator().manual_seed(seed)
    found: Changes = {}
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
        own_alpha = alpha(name) if callable(alpha) else alpha
        found[name] = Change(down, up.reshape(*up.shape, *window), own_alpha)
    return found


def peft(parts: Mapping[str, Changes]) -> Tensors:
    """As diffusers writes it, alpha multiplied in: changes by the component's name."""
    return {
        f"{part}.{name}.lora_{letter}.weight": array
        for part, changes in parts.items()
        for name, change in changes.items()
        for letter, array in (("A", change.down), ("B", change.scaled_up))
    }


def peft_with_metadata(parts: Mapping[str, Changes]) -> tuple[Tensors, dict[str, str]]:
    """As diffusers writes it with PEFT's config, which has the alphas."""
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
    """As kohya's scripts write it: underscores, and each layer's alpha.

    Args:
        name: of a layer, with dots.
    """
    return {
        f"{prefix}_{name(own).replace('.', '_')}.{ending}": array.contiguous()
        for own, change in changes.items()
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
class Loaded:
    """File of an adapter, and how it is asked for."""

    file: Path
    scale: float = 0.8
    expert: Expert | None = None


def their_pixels(
    pipe: Any, adapters: Sequence[Loaded], run: Callable[[Any], np.ndarray]
) -> np.ndarray:
    """Pixels by diffusers, uint8; its pipeline is left without adapters."""
    names = [f"adapter_{number}" for number in range(len(adapters))]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PEFT's, of a second adapter
            for name, one in zip(names, adapters, strict=True):
                _load(pipe, name, one)
        if adapters:
            pipe.set_adapters(names, [one.scale for one in adapters])
        return run(pipe)
    finally:
        pipe.unload_lora_weights()


def _load(pipe: Any, name: str, one: Loaded) -> None:
    more = {"load_into_transformer_2": True} if one.expert == "low" else {}
    file = {"weight_name": one.file.name, "adapter_name": name}
    pipe.load_lora_weights(one.file.parent, **file, **more)


class Ours:
    """One loaded checkpoint with banks; its programs are compiled once, whatever the banks hold."""

    def __init__(self, folder: Path, pages: int = BANK_PAGES) -> None:
        self.pipeline: Any = registry.load("tiny", str(folder), "float32", {})
        self.names: Names = names_of(self.pipeline)
        install_banks(self.pipeline, pages)
        self.programs = Programs(self.pipeline)

    def read(self, one: Loaded) -> Adapter:
        return read(one.file, self.names, one.expert)

    def pixels(
        self,
        request: Mapping[str, Any],
        adapters: Sequence[Loaded],
        images: Mapping[str, bytes] | None = None,
    ) -> np.ndarray:
        """Pixels with these adapters, one behind the other in the banks."""
        read_ones = [self.read(one) for one in adapters]
        asked = [_asked(one, own) for one, own in zip(adapters, read_ones, strict=True)]
        fields = {**self.pipeline.spec.defaults, **request, "loras": asked}
        prepared = self.pipeline.prepare(fields, images or {})
        weights = filled(self.pipeline, read_ones)
        return np.asarray(self.programs.drawn(prepared, weights)[1])


def _asked(one: Loaded, adapter: Adapter) -> dict[str, Any]:
    return RequestedLora(
        name=one.file.stem,
        digest=one.file.stem,
        pages=adapter.pages,
        networks=tuple(adapter.networks),
        scales=(ScaleInterval(start=0, stop=1, scale=one.scale),),
    ).model_dump()


def filled(pipeline: Any, adapters: Iterable[Adapter]) -> Any:
    """The pipeline's weights, its banks with these adapters from the first page on."""
    weights, first = pipeline.weights, 0
    for adapter in adapters:
        for network, changes in adapter.networks.items():
            state = getattr(weights, network)
            module = nnx.merge(getattr(pipeline.graphs, network), state)
            arrays = page_arrays(module, changes, adapter.pages)
            weights = weights._replace(**{network: _with_pages(state, arrays, first)})
        first += adapter.pages
    return weights


def _with_pages(state: Any, arrays: Mapping[str, np.ndarray], first: int) -> Any:
    flat = []
    for path, leaf in nnx.to_flat_state(state):
        array = arrays.get(".".join(map(str, path)))
        if isinstance(leaf, AdapterPages) and array is not None:
            axis, bank = page_axis(leaf), np.array(leaf.get_value())
            where = (slice(None),) * axis + (slice(first, first + array.shape[axis]),)
            bank[where] = array
            leaf = leaf.replace(bank)
        flat.append((path, leaf))
    return nnx.from_flat_state(flat)


def psnr_db(found: np.ndarray, expected: np.ndarray) -> float:
    error = np.square(found.astype(np.float64) - expected).mean()
    return float("inf") if error == 0 else float(10 * np.log10(255**2 / error))


def assert_same(found: np.ndarray, expected: np.ndarray, record: Callable[..., None]) -> None:
    off = int(np.abs(found.astype(int) - expected).max())
    decibels = psnr_db(found, expected)
    record("psnr_db", decibels)
    record("grey_levels", off)
    print(f"{decibels:.1f} dB, {off}")
    assert expected.std() > 10, "a flat image proves nothing"
    assert decibels >= LEAST_DB and off <= GREY_LEVELS


def assert_far(found: np.ndarray, expected: np.ndarray) -> None:
    print(f"{psnr_db(found, expected):.1f} dB")
    assert psnr_db(found, expected) < FAR_DB


def without(tensors: Tensors, *parts: str) -> Tensors:
    """The tensors whose keys have none of these parts."""
    return {key: array for key, array in tensors.items() if not any(p in key for p in parts)}


def turned(changes: Changes) -> Changes:
    """Changes with up and down swapped, where both have the same sizes."""
    return {
        name: replace(change, down=change.up.T.contiguous(), up=change.down.T.contiguous())
        if change.down.ndim == 2 and change.down.shape[1] == change.up.shape[0]
        else change
        for name, change in changes.items()
    }
