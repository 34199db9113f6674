"""Krea 2 adapters compared with diffusers, from files of each format."""

from __future__ import annotations

from typing import Any

import pytest
from diffusers import Krea2Pipeline

from tests.models.krea2.original_writer import BLOCK_NAMES, NAMES
from tests.parity.adapter_files import kohya, peft
from tests.parity.adapter_forms import Form, TrainedAdapter, dotted
from tests.parity.tiny_krea2 import make_krea2

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

FORMS: dict[str, Form] = {
    "PEFT": lambda changes: peft({"transformer": changes}),
    "authors": lambda changes: dotted("diffusion_model.", _with_authors_names(changes)),
    "kohya": lambda changes: kohya("lora_unet", changes),
}


def _with_authors_names(changes: dict[str, Any]) -> dict[str, Any]:
    def renamed(layer: str) -> str:
        name = f"{layer}."
        for diffusers, original in NAMES:
            name = name.replace(diffusers, original) if name.startswith(diffusers) else name
        for diffusers, original in BLOCK_NAMES:
            name = name.replace(diffusers, original)
        return name.replace("transformer_blocks.", "blocks.").removesuffix(".")

    return {renamed(layer): change for layer, change in changes.items()}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainedAdapter:
    root = tmp_path_factory.mktemp("krea2")
    folder = make_krea2(root / "model")
    reference = {"kohya": FORMS["PEFT"]}  # diffusers does not read it
    return TrainedAdapter(root, folder, Krea2Pipeline.from_pretrained, FORMS, {}, reference)


@pytest.mark.parametrize("form", FORMS)
def test_a_file_of_each_form(form: str, trained: TrainedAdapter, record_property: Any) -> None:
    trained.assert_same(form, record_property)


def test_missing_or_transposed_adapter_breaks_parity(trained: TrainedAdapter) -> None:
    trained.assert_far_without()
