"""Qwen-Image's adapters against diffusers, from files of each form that it reads."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import QwenImagePipeline

from tests.parity.adapter_files import (
    Changes,
    Loaded,
    Ours,
    Tensors,
    assert_far,
    assert_same,
    kohya,
    peft,
    random_changes,
    their_pixels,
    turned,
    write,
)
from tests.parity.tiny_qwenimage import make_qwenimage

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

REQUEST = {"prompt": "a red circle", "height": 64, "width": 64, "num_inference_steps": 3}
MORE = {"max_sequence_length": 150}
SEED = 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_qwenimage(tmp_path_factory.mktemp("qwenimage"))


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    pipe = QwenImagePipeline.from_pretrained(folder)
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.fixture(scope="module")
def ours(folder: Path) -> Ours:
    return Ours(folder)


@pytest.fixture(scope="module")
def changes(reference: Any) -> Changes:
    return random_changes(reference.transformer, 3, rank=lambda name: 3 + len(name) % 3)


def plain(prefix: str, changes: Changes, down: str = "lora_A", up: str = "lora_B") -> Tensors:
    """By names with dots, alpha multiplied in."""
    return {
        f"{prefix}{name}.{end}.weight": array
        for name, change in changes.items()
        for end, array in ((down, change.down), (up, change.scaled_up))
    }


def with_alphas(changes: Changes) -> Tensors:
    """By diffusers' names, each with its alpha."""
    return {
        f"{name}.{end}": array
        for name, change in changes.items()
        for end, array in (
            ("lora_down.weight", change.down),
            ("lora_up.weight", change.up),
            ("alpha", torch.tensor(change.alpha)),
        )
    }


FORMS: dict[str, Callable[[Changes], Tensors]] = {
    "PEFT": lambda changes: peft({"transformer": changes}),
    "ComfyUI": lambda changes: plain("diffusion_model.", changes),
    "Lightning": with_alphas,
    "default adapters": lambda changes: plain("", changes, "lora_A.default", "lora_B.default"),
    "kohya": lambda changes: kohya("lora_unet", changes),
}


def run(pipe: Any) -> np.ndarray:
    generator = torch.Generator().manual_seed(SEED)
    return np.asarray(pipe(**REQUEST, **MORE, generator=generator).images[0])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, changes: Changes) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("files")
    return {
        form: write(make(changes), root / f"{number}.safetensors")
        for number, (form, make) in enumerate(FORMS.items())
    }


@pytest.fixture(scope="module")
def expected(reference: Any, files: dict[str, Path]) -> Callable[[str], np.ndarray]:
    return cache(lambda form: their_pixels(reference, [Loaded(files[form])], run))


@pytest.mark.parametrize("form", FORMS)
def test_a_file_of_each_form(
    form: str,
    ours: Ours,
    files: dict[str, Path],
    expected: Callable[[str], np.ndarray],
    record_property: Any,
) -> None:
    found = ours.pixels({**REQUEST, **MORE, "seed": SEED}, [Loaded(files[form])])
    assert_same(found, expected(form), record_property)


def test_without_it_and_turned_it_is_far(
    ours: Ours, changes: Changes, expected: Callable[[str], np.ndarray], tmp_path: Path
) -> None:
    request = {**REQUEST, **MORE, "seed": SEED}
    assert_far(ours.pixels(request, []), expected("PEFT"))
    wrong = write(peft({"transformer": turned(changes)}), tmp_path / "turned.safetensors")
    assert_far(ours.pixels(request, [Loaded(wrong)]), expected("PEFT"))
