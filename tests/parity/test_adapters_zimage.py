"""Z-Image's adapters against diffusers, from files of each form.

Of ComfyUI's fused layers diffusers reads one spelling alone: those of the others are held against
PEFT's file of the same changes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import ZImagePipeline

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
from tests.parity.tiny_zimage import make_zimage

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

REQUEST = {"prompt": "a red circle", "height": 64, "width": 64, "num_inference_steps": 3}
MORE = {"guidance_scale": 0.0, "max_sequence_length": 64}
SEED = 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_zimage(tmp_path_factory.mktemp("zimage"))


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    pipe = ZImagePipeline.from_pretrained(folder)
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.fixture(scope="module")
def ours(folder: Path) -> Ours:
    return Ours(folder)


@pytest.fixture(scope="module")
def changes(reference: Any) -> Changes:
    return random_changes(reference.transformer, 3, rank=lambda name: 3 + len(name) % 3)


def in_blocks(changes: Changes) -> Changes:
    """What trainers change, and diffusers' converter knows."""
    return {n: c for n, c in changes.items() if ".attention." in n or ".feed_forward." in n}


def plain(changes: Changes, down: str = "lora_A", up: str = "lora_B") -> Tensors:
    """By names with dots, alpha multiplied in."""
    return {
        f"diffusion_model.{name}.{end}.weight": array
        for name, change in changes.items()
        for end, array in ((down, change.down), (up, change.scaled_up))
    }


def fused(changes: Changes) -> tuple[Changes, Changes]:
    """ComfyUI's layers, whose parts share `down`, and the same by diffusers' names."""
    whole: Changes = {}
    parts: Changes = {}
    for name, change in in_blocks(changes).items():
        block, _, layer = name.rpartition("attention.")
        if layer == "to_q":
            ups = [changes[f"{block}attention.to_{one}"].up[:, :3] for one in "qkv"]
            down = change.down[:3]
            whole[f"{block}attention.qkv"] = Change(down, torch.cat(ups), 2.0)
            for one, up in zip("qkv", ups, strict=True):
                parts[f"{block}attention.to_{one}"] = Change(down, up, 2.0)
        elif layer == "to_out.0":
            whole[f"{block}attention.out"] = parts[name] = change
    return whole, parts


Made = tuple[Tensors, Tensors | None]
"""A file, and PEFT's of the same changes where diffusers does not read the first one."""
FORMS: dict[str, Callable[[Changes], Made]] = {
    "PEFT": lambda changes: (peft({"transformer": changes}), None),
    "ComfyUI": lambda changes: (plain(changes), None),
    "ComfyUI, lora_down": lambda changes: (plain(changes, "lora_down", "lora_up"), None),
    "ComfyUI's layers": lambda changes: (
        plain(fused(changes)[0]),
        peft({"transformer": fused(changes)[1]}),
    ),
    "kohya": lambda changes: (kohya("lora_unet", in_blocks(changes)), None),
    "kohya, ComfyUI's layers": lambda changes: (
        kohya("lora_unet", fused(changes)[0]),
        peft({"transformer": fused(changes)[1]}),
    ),
}


def run(pipe: Any) -> np.ndarray:
    generator = torch.Generator().manual_seed(SEED)
    return np.asarray(pipe(**REQUEST, **MORE, generator=generator).images[0])


@pytest.fixture(scope="module")
def files(
    tmp_path_factory: pytest.TempPathFactory, changes: Changes
) -> dict[str, tuple[Path, Path]]:
    """By form: the file, and the one that diffusers reads."""
    root, found = tmp_path_factory.mktemp("files"), {}
    for number, (form, make) in enumerate(FORMS.items()):
        tensors, theirs = make(changes)
        file = write(tensors, root / f"{number}.safetensors")
        same = file if theirs is None else write(theirs, root / f"{number}-peft.safetensors")
        found[form] = (file, same)
    return found


@pytest.fixture(scope="module")
def expected(reference: Any, files: dict[str, tuple[Path, Path]]) -> Callable[[str], np.ndarray]:
    return cache(lambda form: their_pixels(reference, [Loaded(files[form][1])], run))


@pytest.mark.parametrize("form", FORMS)
def test_a_file_of_each_form(
    form: str,
    ours: Ours,
    files: dict[str, tuple[Path, Path]],
    expected: Callable[[str], np.ndarray],
    record_property: Any,
) -> None:
    found = ours.pixels({**REQUEST, **MORE, "seed": SEED}, [Loaded(files[form][0])])
    assert_same(found, expected(form), record_property)


def test_without_it_and_turned_it_is_far(
    ours: Ours, changes: Changes, expected: Callable[[str], np.ndarray], tmp_path: Path
) -> None:
    request = {**REQUEST, **MORE, "seed": SEED}
    assert_far(ours.pixels(request, []), expected("PEFT"))
    wrong = write(peft({"transformer": turned(changes)}), tmp_path / "turned.safetensors")
    assert_far(ours.pixels(request, [Loaded(wrong)]), expected("PEFT"))
