"""Z-Image adapters compared with diffusers, from files of each format.

diffusers reads only one spelling of ComfyUI's fused layers. The others are compared with PEFT's
file of the same changes.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from diffusers import ZImagePipeline

from tests.parity.adapter_files import Change, Changes, kohya, peft
from tests.parity.adapter_forms import (
    Form,
    TrainedAdapter,
    dotted,
    lokr,
    sizes,
    with_magnitudes,
)
from tests.parity.tiny_zimage import make_zimage

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

MORE = {"guidance_scale": 0.0, "max_sequence_length": 64}


def in_blocks(changes: Changes) -> Changes:
    """Changes of layers that trainers use and diffusers' converter supports."""
    return {n: c for n, c in changes.items() if ".attention." in n or ".feed_forward." in n}


def fused(changes: Changes) -> tuple[Changes, Changes]:
    """Changes of ComfyUI's layers, whose parts share `down`, and their equivalents in diffusers."""
    joined: Changes = {}
    parts: Changes = {}
    for name, change in in_blocks(changes).items():
        block, _, layer = name.rpartition("attention.")
        if layer == "to_q":
            ups = [changes[f"{block}attention.to_{letter}"].up[:, :3] for letter in "qkv"]
            down = change.down[:3]
            joined[f"{block}attention.qkv"] = Change(down, torch.cat(ups), 2.0)
            for letter, up in zip("qkv", ups, strict=True):
                parts[f"{block}attention.to_{letter}"] = Change(down, up, 2.0)
        elif layer == "to_out.0":
            joined[f"{block}attention.out"] = parts[name] = change
    return joined, parts


FORMS: dict[str, Form] = {
    "PEFT": lambda changes: peft({"transformer": changes}),
    "ComfyUI": lambda changes: dotted("diffusion_model.", changes),
    "ComfyUI, lora_down": lambda changes: dotted(
        "diffusion_model.", changes, "lora_down", "lora_up"
    ),
    "ComfyUI's layers": lambda changes: dotted("diffusion_model.", fused(changes)[0]),
    "kohya": lambda changes: kohya("lora_unet", in_blocks(changes)),
    "kohya, ComfyUI's layers": lambda changes: kohya("lora_unet", fused(changes)[0]),
    "LoKr": lambda changes: lokr("diffusion_model.", sizes(in_blocks(changes))),
    "LoKr, LyCORIS' names": lambda changes: lokr("lycoris_", sizes(in_blocks(changes)), dots=False),
    "DoRA": lambda changes: with_magnitudes(
        peft({"transformer": in_blocks(changes)}), "lora_magnitude_vector"
    ),
    "DoRA, kohya": lambda changes: with_magnitudes(
        kohya("lora_unet", in_blocks(changes)), "dora_scale", "lora_up.weight", column=True
    ),
}
THEIRS: dict[str, Form] = {
    **dict.fromkeys(
        ("ComfyUI's layers", "kohya, ComfyUI's layers"),
        lambda changes: peft({"transformer": fused(changes)[1]}),
    ),
    "LoKr, LyCORIS' names": FORMS["LoKr"],
    "DoRA, kohya": FORMS["DoRA"],
}
"""PEFT's files of the same changes, for formats that diffusers does not read."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainedAdapter:
    root = tmp_path_factory.mktemp("zimage")
    folder = make_zimage(root / "model")
    return TrainedAdapter(root, folder, ZImagePipeline.from_pretrained, FORMS, MORE, THEIRS)


@pytest.mark.parametrize("form", FORMS)
def test_a_file_of_each_form(form: str, trained: TrainedAdapter, record_property: Any) -> None:
    trained.assert_same(form, record_property)


def test_missing_or_transposed_adapter_breaks_parity(trained: TrainedAdapter) -> None:
    trained.assert_far_without()
