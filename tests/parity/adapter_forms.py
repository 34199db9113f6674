"""Adapters of a transformer against diffusers, from files of each form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.parity.adapter_files import (
    Changes,
    Loaded,
    Ours,
    Tensors,
    assert_far,
    assert_same,
    peft,
    random_changes,
    their_pixels,
    turned,
    write,
)

Form = Callable[[Changes], Tensors]
"""Make a file's tensors of changes."""
PEFT = "PEFT"
"""Name of PEFT's form."""
REQUEST = {"prompt": "a red circle", "height": 64, "width": 64, "num_inference_steps": 3}
SEED = 5


class Trained:
    """A checkpoint, and one adapter in each form.

    Args:
        root: folder for the files.
        folder: of the checkpoint.
        read: diffusers' pipeline of it.
        more: fields of the request, which are its arguments.
        theirs: files of the same changes, for forms that diffusers does not read.
    """

    def __init__(
        self,
        root: Path,
        folder: Path,
        read: Callable[[Path], Any],
        forms: Mapping[str, Form],
        more: Mapping[str, Any],
        theirs: Mapping[str, Form] | None = None,
    ) -> None:
        self.root, self.request, self.ours = root, {**REQUEST, **more}, Ours(folder)
        self.reference = read(folder)
        self.reference.set_progress_bar_config(disable=True)
        network = self.reference.transformer
        self.changes = random_changes(network, 3, rank=lambda name: 3 + len(name) % 3)
        self.forms, self.theirs = forms, {**forms, **(theirs or {})}
        self.expected = cache(self._expected)

    def assert_same(self, form: str, record: Any) -> None:
        """The image drawn with a file of that form is diffusers'."""
        file = self._written("ours", form, self.forms[form])
        assert_same(self._pixels(Loaded(file)), self.expected(form), record)

    def assert_far_without(self) -> None:
        """The image drawn without it, or with matrices the other way round, is another."""
        expected = self.expected(PEFT)
        assert_far(self._pixels(), expected)
        wrong = peft({"transformer": turned(self.changes)})
        assert_far(self._pixels(Loaded(write(wrong, self.root / "turned.safetensors"))), expected)

    def _pixels(self, *loaded: Loaded) -> np.ndarray:
        return self.ours.pixels({**self.request, "seed": SEED}, [*loaded])

    def _expected(self, form: str) -> np.ndarray:
        file = self._written("theirs", form, self.theirs[form])
        return their_pixels(self.reference, [Loaded(file)], self._run)

    def _written(self, whose: str, form: str, make: Form) -> Path:
        """A file of a name of its own, by which it is known."""
        number = [*self.forms].index(form)
        return write(make(self.changes), self.root / f"{whose}-{number}.safetensors")

    def _run(self, pipe: Any) -> np.ndarray:
        generator = torch.Generator().manual_seed(SEED)
        return np.asarray(pipe(**self.request, generator=generator).images[0])


def dotted(prefix: str, changes: Changes, down: str = "lora_A", up: str = "lora_B") -> Tensors:
    """By names with dots, alpha multiplied in."""
    return {
        f"{prefix}{name}.{end}.weight": array
        for name, change in changes.items()
        for end, array in ((down, change.down), (up, change.scaled_up))
    }
