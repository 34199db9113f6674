"""Qwen-Image adapters compared with diffusers, from files of each format that diffusers reads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from diffusers import QwenImagePipeline

from tests.parity.adapter_files import Changes, Tensors, kohya, peft
from tests.parity.adapter_forms import Form, TrainedAdapter, dotted
from tests.parity.tiny_qwenimage import make_qwenimage

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

MORE = {"max_sequence_length": 150}


def with_alphas(changes: Changes) -> Tensors:
    """Tensors under diffusers' names, each with its alpha."""
    return {
        f"{name}.{end}": array
        for name, change in changes.items()
        for end, array in (
            ("lora_down.weight", change.down),
            ("lora_up.weight", change.up),
            ("alpha", torch.tensor(change.alpha)),
        )
    }


FORMS: dict[str, Form] = {
    "PEFT": lambda changes: peft({"transformer": changes}),
    "ComfyUI": lambda changes: dotted("diffusion_model.", changes),
    "Lightning": with_alphas,
    "default adapters": lambda changes: dotted("", changes, "lora_A.default", "lora_B.default"),
    "kohya": lambda changes: kohya("lora_unet", changes),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainedAdapter:
    root = tmp_path_factory.mktemp("qwenimage")
    folder = make_qwenimage(root / "model")
    return TrainedAdapter(root, folder, QwenImagePipeline.from_pretrained, FORMS, MORE)


@pytest.mark.parametrize("form", FORMS)
def test_a_file_of_each_form(form: str, trained: TrainedAdapter, record_property: Any) -> None:
    trained.assert_same(form, record_property)


def test_missing_or_transposed_adapter_breaks_parity(trained: TrainedAdapter) -> None:
    trained.assert_far_without()
