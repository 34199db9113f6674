"""Chroma adapters compared with diffusers, from files of each format."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.models.chroma.original_writer import fused_layers
from tests.parity.adapter_files import Changes, Tensors, kohya, peft
from tests.parity.adapter_forms import Form, TrainedAdapter
from tests.parity.tiny_chroma import MaskedChroma, make_chroma

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def _with_authors_names(changes: Changes) -> Tensors:
    """Tensors in kohya's format; a fused layer has the ranks of all its parts."""
    tensors: Tensors = {}
    for name, layers in fused_layers(changes.keys()):
        parts, key = [changes[layer] for layer in layers], f"lora_unet_{name.replace('.', '_')}"
        tensors[f"{key}.lora_down.weight"] = torch.cat([part.down for part in parts])
        tensors[f"{key}.lora_up.weight"] = torch.block_diag(*(part.scaled_up for part in parts))
        tensors[f"{key}.alpha"] = torch.tensor(float(sum(part.rank for part in parts)))
    return tensors


FORMS: dict[str, Form] = {
    "PEFT": lambda changes: peft({"transformer": changes}),
    "kohya": lambda changes: kohya("lora_unet", changes),
    "authors": _with_authors_names,
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainedAdapter:
    root = tmp_path_factory.mktemp("chroma")
    folder = make_chroma(root / "model")
    reference = dict.fromkeys(("kohya", "authors"), FORMS["PEFT"])  # diffusers reads neither
    read = MaskedChroma.from_pretrained
    return TrainedAdapter(root, folder, read, FORMS, {"guidance_scale": 2.0}, reference)


@pytest.mark.parametrize("form", FORMS)
def test_a_file_of_each_form(form: str, trained: TrainedAdapter, record_property: Any) -> None:
    trained.assert_same(form, record_property)


def test_missing_or_transposed_adapter_breaks_parity(trained: TrainedAdapter) -> None:
    trained.assert_far_without()
