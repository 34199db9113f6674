"""FLUX.2's adapters against diffusers, from files of each form."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import Flux2KleinPipeline

from tests.models.flux2.original_writer import renamed
from tests.parity.adapter_files import (
    Change,
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
from tests.parity.tiny_flux2 import make_flux2

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

REQUEST = {"prompt": "a red circle", "height": 64, "width": 64, "num_inference_steps": 3}
MORE = {"max_sequence_length": 48}
SEED = 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_flux2(tmp_path_factory.mktemp("flux2"), is_distilled=True)


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    pipe = Flux2KleinPipeline.from_pretrained(folder)
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.fixture(scope="module")
def ours(folder: Path) -> Ours:
    return Ours(folder)


@pytest.fixture(scope="module")
def changes(reference: Any) -> Changes:
    return random_changes(reference.transformer, 3, rank=lambda name: 3 + len(name) % 3)


def in_blocks(changes: Changes) -> Changes:
    """What trainers change, and diffusers' converters know."""
    return {name: change for name, change in changes.items() if "transformer_blocks" in name}


def plain(changes: Changes) -> Tensors:
    """By names with dots, alpha multiplied in."""
    return {
        f"diffusion_model.{name}.{end}.weight": array
        for name, change in changes.items()
        for end, array in (("lora_A", change.down), ("lora_B", change.scaled_up))
    }


def authors(changes: Changes) -> Changes:
    """By the authors' layers, whose queries, keys and values share `down`."""
    found: Changes = {}
    for name, change in in_blocks(changes).items():
        block, _, layer = name.partition("attn.")
        if layer in ("to_q", "add_q_proj"):
            parts = [layer.replace("q", one) for one in "qkv"]
            ups = torch.cat([changes[f"{block}attn.{part}"].up[:, :3] for part in parts])
            stream = "img" if layer == "to_q" else "txt"
            found[f"{renamed(block)}{stream}_attn.qkv"] = Change(change.down[:3], ups, 2.0)
        elif not layer.endswith(("to_k", "to_v", "add_k_proj", "add_v_proj")):
            found[renamed(name)] = change
    return found


FORMS: dict[str, Callable[[Changes], Tensors]] = {
    "PEFT": lambda changes: peft({"transformer": changes}),
    "diffusers' names": lambda changes: plain(in_blocks(changes)),
    "ai-toolkit": lambda changes: plain(authors(changes)),
    "kohya": lambda changes: kohya("lora_unet", authors(changes)),
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
