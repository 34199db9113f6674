"""Adapters of a transformer compared with diffusers, from files of each format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.parity.adapter_files import (
    AtelierRunner,
    Changes,
    LoadedAdapter,
    Tensors,
    assert_far,
    assert_same,
    diffusers_pixels,
    peft,
    random_changes,
    turned,
    write,
)

Form = Callable[[Changes], Tensors]
"""Function that converts changes to a file's tensors."""
PEFT = "PEFT"
"""Name of PEFT's format."""
REQUEST = {"prompt": "a red circle", "height": 64, "width": 64, "num_inference_steps": 3}
SEED = 5


class TrainedAdapter:
    """A checkpoint, and one adapter in each format.

    Args:
        root: folder for the files.
        folder: of the checkpoint.
        read: diffusers' pipeline of it.
        more: fields of the request, which are its arguments.
        reference: files of the same changes, for formats that diffusers does not read.
    """

    def __init__(
        self,
        root: Path,
        folder: Path,
        read: Callable[[Path], Any],
        forms: Mapping[str, Form],
        more: Mapping[str, Any],
        reference: Mapping[str, Form] | None = None,
    ) -> None:
        self.root, self.request, self.atelier = root, {**REQUEST, **more}, AtelierRunner(folder)
        self.reference = read(folder)
        self.reference.set_progress_bar_config(disable=True)
        network = self.reference.transformer
        self.changes = random_changes(network, 3, rank=lambda name: 3 + len(name) % 3)
        self.forms, self.diffusers = forms, {**forms, **(reference or {})}
        self.expected = cache(self._expected)

    def assert_same(self, form: str, record: Any) -> None:
        """Assert that the image with a file of this format equals diffusers'."""
        file = self._written("atelier", form, self.forms[form])
        assert_same(self._pixels(LoadedAdapter(file)), self.expected(form), record)

    def assert_far_without(self) -> None:
        """Assert that the image differs clearly without the adapter, or with swapped matrices."""
        expected = self.expected(PEFT)
        assert_far(self._pixels(), expected)
        wrong = peft({"transformer": turned(self.changes)})
        assert_far(
            self._pixels(LoadedAdapter(write(wrong, self.root / "turned.safetensors"))), expected
        )

    def _pixels(self, *loaded: LoadedAdapter) -> np.ndarray:
        return self.atelier.pixels({**self.request, "seed": SEED}, [*loaded])

    def _expected(self, form: str) -> np.ndarray:
        file = self._written("diffusers", form, self.diffusers[form])
        return diffusers_pixels(self.reference, [LoadedAdapter(file)], self._run)

    def _written(self, whose: str, form: str, make: Form) -> Path:
        """Write the file under a unique name, which identifies the adapter."""
        number = [*self.forms].index(form)
        return write(make(self.changes), self.root / f"{whose}-{number}.safetensors")

    def _run(self, pipe: Any) -> np.ndarray:
        generator = torch.Generator().manual_seed(SEED)
        return np.asarray(pipe(**self.request, generator=generator).images[0])


def with_magnitudes(
    tensors: Tensors,
    ending: str,
    part: str = "lora_B.weight",
    *,
    column: bool = False,
) -> Tensors:
    """Return an adapter's tensors with random magnitudes of each layer's outputs (DoRA).

    Args:
        ending: of the magnitudes' keys.
        part: ending of the keys of up.
        column: whether the file has them as a column.
    """
    generator = torch.Generator().manual_seed(11)
    magnitudes = {}
    for key, array in tensors.items():
        if key.endswith(part):
            values = 1 + 0.3 * torch.randn(len(array), generator=generator)
            shape = (-1, 1) if column else (-1,)
            magnitudes[key.removesuffix(part) + ending] = values.reshape(shape)
    return tensors | magnitudes


def lokr(prefix: str, layers: Mapping[str, tuple[int, int]], dots: bool = True) -> Tensors:
    """Return the tensors of a random LoKr adapter, whose second factors are products.

    Args:
        layers: outputs and inputs of each layer; even numbers.
    """
    generator = torch.Generator().manual_seed(12)
    tensors: Tensors = {}
    for name, (outputs, inputs) in layers.items():
        key = prefix + (name if dots else name.replace(".", "_"))
        shapes = {"w1": (2, 2), "w2_a": (outputs // 2, 2), "w2_b": (2, inputs // 2)}
        for part, shape in shapes.items():
            tensors[f"{key}.lokr_{part}"] = torch.randn(shape, generator=generator) / inputs**0.5
        tensors[f"{key}.lokr_w1"] *= inputs**0.5 / 2
        tensors[f"{key}.alpha"] = torch.tensor(3.0)
    return tensors


def sizes(changes: Changes) -> dict[str, tuple[int, int]]:
    """Return the outputs and inputs of the changes' layers."""
    return {name: (len(change.up), change.down.shape[1]) for name, change in changes.items()}


def dotted(prefix: str, changes: Changes, down: str = "lora_A", up: str = "lora_B") -> Tensors:
    """Tensors with dotted names and alpha multiplied in."""
    return {
        f"{prefix}{name}.{end}.weight": array
        for name, change in changes.items()
        for end, array in ((down, change.down), (up, change.scaled_up))
    }
