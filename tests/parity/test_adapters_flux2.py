"""FLUX.2 adapters compared with diffusers, from files of each format."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from diffusers import Flux2KleinPipeline

from tests.models.flux2.original_writer import renamed
from tests.parity.adapter_files import Change, Changes, kohya, peft
from tests.parity.adapter_forms import Form, TrainedAdapter, dotted, lokr, sizes
from tests.parity.tiny_flux2 import make_flux2

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

MORE = {"max_sequence_length": 48}


def in_blocks(changes: Changes) -> Changes:
    """Changes of layers that trainers use and diffusers' converters support."""
    return {name: change for name, change in changes.items() if "transformer_blocks" in name}


def authors(changes: Changes) -> Changes:
    """Changes of the authors' layers, whose queries, keys and values share `down`."""
    converted: Changes = {}
    for name, change in in_blocks(changes).items():
        block, _, layer = name.partition("attn.")
        if layer in ("to_q", "add_q_proj"):
            parts = [layer.replace("q", letter) for letter in "qkv"]
            ups = torch.cat([changes[f"{block}attn.{part}"].up[:, :3] for part in parts])
            stream = "img" if layer == "to_q" else "txt"
            converted[f"{renamed(block)}{stream}_attn.qkv"] = Change(change.down[:3], ups, 2.0)
        elif not layer.endswith(("to_k", "to_v", "add_k_proj", "add_v_proj")):
            converted[renamed(name)] = change
    return converted


def authors_sizes(changes: Changes) -> dict[str, tuple[int, int]]:
    """Sizes of the authors' layers, of which queries, keys and values are one."""
    return sizes(authors(changes))


FORMS: dict[str, Form] = {
    "PEFT": lambda changes: peft({"transformer": changes}),
    "diffusers' names": lambda changes: dotted("diffusion_model.", in_blocks(changes)),
    "ai-toolkit": lambda changes: dotted("diffusion_model.", authors(changes)),
    "kohya": lambda changes: kohya("lora_unet", authors(changes)),
    "LoKr, ai-toolkit": lambda changes: lokr("diffusion_model.", authors_sizes(changes)),
    "LoKr, diffusers' names": lambda changes: lokr("", sizes(in_blocks(changes))),
    "LoKr, LyCORIS' names": lambda changes: lokr("lycoris_", sizes(in_blocks(changes)), dots=False),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainedAdapter:
    root = tmp_path_factory.mktemp("flux2")
    folder = make_flux2(root / "model", is_distilled=True)
    return TrainedAdapter(root, folder, Flux2KleinPipeline.from_pretrained, FORMS, MORE)


@pytest.mark.parametrize("form", FORMS)
def test_a_file_of_each_form(form: str, trained: TrainedAdapter, record_property: Any) -> None:
    trained.assert_same(form, record_property)


def test_missing_or_transposed_adapter_breaks_parity(trained: TrainedAdapter) -> None:
    trained.assert_far_without()
