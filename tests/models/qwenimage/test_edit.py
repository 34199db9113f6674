"""Qwen-Image-Edit checkpoints: single files, and mismatched parts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from models.checkpoint.folder import CheckpointError
from tests.models.qwenimage.original_writer import transformer
from tests.models.single_files import Tensors, are_equal, weights, write
from tests.parity.tiny_qwenimage import make_edit


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_edit(tmp_path_factory.mktemp("edit") / "base")


def with_encoder(folder: Path) -> Tensors:
    """Return a file's tensors: the transformer, and the text encoder with its vision tower."""
    text = load_file(folder / "text_encoder/model.safetensors")
    prefix = "text_encoders.qwen25_7b.transformer."
    stored = {f"model.diffusion_model.{key}": t for key, t in transformer(folder).items()}
    for key, tensor in text.items():
        plain = key.replace("model.language_model", "model").replace("model.visual", "visual")
        stored[prefix + plain] = tensor
    return stored


def test_a_file_with_the_tower_that_reads_images(
    folder: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = make_edit(tmp_path_factory.mktemp("other") / "base", seed=50)
    complete, of_base = weights(folder), weights(other)
    loaded = weights(write(with_encoder(folder), tmp_path / "edit.safetensors"), other)
    for name in ("transformer", "text_encoder", "vision"):
        assert are_equal(getattr(loaded, name), getattr(complete, name))
    assert are_equal(loaded.vae, of_base.vae)


@pytest.mark.parametrize(
    ("file", "path", "value", "named"),
    [
        ("processor/preprocessor_config.json", ("merge_size",), 1, "merge_size is 1"),
        ("text_encoder/config.json", ("vision_config", "out_hidden_size"), 7, "out_hidden_size"),
        (
            *("text_encoder/config.json", ("text_config", "rope_parameters", "mrope_section")),
            *([], "mrope_section"),
        ),
    ],
    ids=str,
)
def test_parts_that_do_not_fit_are_refused(
    folder: Path, file: str, path: tuple[str, ...], value: object, named: str
) -> None:
    stored = (folder / file).read_text()
    config = json.loads(stored)
    node = config
    for name in path[:-1]:
        node = node[name]
    node[path[-1]] = value
    (folder / file).write_text(json.dumps(config))
    try:
        with pytest.raises(CheckpointError, match=named):
            weights(folder)
    finally:
        (folder / file).write_text(stored)
