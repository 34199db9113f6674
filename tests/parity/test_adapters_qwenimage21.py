"""Qwen-Image 2.1 adapters compared with diffusers, from files of each format."""

from __future__ import annotations

from typing import Any

import pytest

from tests.parity.adapter_files import kohya, peft
from tests.parity.adapter_forms import Form, TrainedAdapter, dotted
from tests.parity.tiny_qwenimage21 import make_qwenimage21, pipeline_of

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

FORMS: dict[str, Form] = {
    "PEFT": lambda changes: peft({"transformer": changes}),
    "ComfyUI": lambda changes: dotted("diffusion_model.", changes),
    "kohya": lambda changes: kohya("lora_unet", changes),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainedAdapter:
    root = tmp_path_factory.mktemp("qwenimage21")
    folder = make_qwenimage21(root / "model")
    reference = {"kohya": FORMS["PEFT"]}  # diffusers does not read it
    return TrainedAdapter(root, folder, pipeline_of, FORMS, {}, reference)


@pytest.mark.parametrize("form", FORMS)
def test_a_file_of_each_form(form: str, trained: TrainedAdapter, record_property: Any) -> None:
    trained.assert_same(form, record_property)


def test_missing_or_transposed_adapter_breaks_parity(trained: TrainedAdapter) -> None:
    trained.assert_far_without()
