"""Qwen2.5-VL's patches, vision tower and multimodal text compared with transformers, in float32.

The reference gets `mm_token_type_ids`, which mark image tokens. It then places them on a grid, as
in training.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from models.checkpoint.folder import CheckpointError, read_config
from models.loading.abstract import abstract_module
from models.text.published import QWEN2_5_VL_7B
from models.text.qwen25 import ImagePosition, positions_with_images
from models.vision.qwen25 import RENAMES, QwenVisionConfig, QwenVisionModel
from models.vision.qwen_patches import QwenPreprocessor
from models.weights.loader import load
from tests.parity.distances import largest
from tests.parity.test_qwen3 import TOLERANCE
from tests.parity.test_qwen25 import ODD as ODD_TEXT
from tests.parity.test_qwen25 import run_atelier as atelier_text
from tests.parity.tiny_qwen import VISION, qwen25

ODD: dict[str, Any] = {
    "depth": 3,
    "hidden_size": 24,
    "intermediate_size": 11,
    "num_heads": 3,
    "patch_size": 3,
    "spatial_merge_size": 3,
    "temporal_patch_size": 1,
    "window_size": 20,
    "fullatt_block_indexes": [0, 2],
}
VARIANTS = {"published kind": {}, "odd": ODD}
GRIDS = {"published kind": (10, 6), "odd": (9, 15)}
SIZES = [(40, 60), (61, 23), (8, 9), (300, 200), (200, 3)]


def tower(folder: Path) -> QwenVisionModel:
    config = QwenVisionConfig.from_dict(read_config(folder.parent, folder.name))
    return load(abstract_module(QwenVisionModel, config), folder, RENAMES, dtype=jnp.float32)


def encoded(model: QwenVisionModel, patches: np.ndarray, grid: tuple[int, int]) -> jax.Array:
    return jax.jit(lambda patches: model(patches, grid))(patches)


def drawn(reference: Any, grid: tuple[int, int]) -> np.ndarray:
    vision = reference.config.vision_config
    pixels = 3 * vision.temporal_patch_size * vision.patch_size**2
    shape = (grid[0] * grid[1], pixels)
    return np.random.default_rng(1).standard_normal(shape, dtype=np.float32)


def diffusers_features(reference: Any, patches: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    with torch.no_grad():
        output = reference.model.visual(torch.tensor(patches), torch.tensor([[1, *grid]]))
    return output.pooler_output.numpy()


@pytest.mark.parametrize("name", VARIANTS)
def test_features(tmp_path: Path, name: str, record_property: Any) -> None:
    reference = qwen25(3, vision=VARIANTS[name])
    reference.save_pretrained(tmp_path)
    grid = GRIDS[name]
    patches = drawn(reference, grid)
    gap = largest(
        encoded(tower(tmp_path), patches, grid), diffusers_features(reference, patches, grid)
    )
    record_property("relative", gap)
    assert gap < TOLERANCE


BITES = {
    "bias of the attention": "blocks.qkv.bias",
    "gate": "blocks.gate.bias",
    "norm of the merger": "merger_norm.scale",
}


@pytest.mark.parametrize("path", BITES.values(), ids=BITES)
def test_changed_array_breaks_parity(tmp_path: Path, path: str) -> None:
    reference = qwen25(3, vision=ODD)
    reference.save_pretrained(tmp_path)
    grid, damaged = GRIDS["odd"], tower(tmp_path)
    leaf: Any = damaged
    for name in path.split("."):
        leaf = getattr(leaf, name)
    leaf[...] = leaf[...] * 1.02
    patches = drawn(reference, grid)
    expected = diffusers_features(reference, patches, grid)
    assert largest(encoded(damaged, patches, grid), expected) > 10 * TOLERANCE


def test_wrong_windows_break_parity(tmp_path: Path) -> None:
    """Wrong windows exceed the tolerance; so do full-attention layers that are windowed by
    mistake."""
    reference = qwen25(3)
    grid = GRIDS["published kind"]
    patches = drawn(reference, grid)
    expected = diffusers_features(reference, patches, grid)
    for full in ([0, 1], []):
        reference.config.vision_config.fullatt_block_indexes = full
        reference.save_pretrained(tmp_path)
        assert largest(encoded(tower(tmp_path), patches, grid), expected) > 1000 * TOLERANCE


@pytest.mark.parametrize("name", VARIANTS)
def test_texts_around_two_images(tmp_path: Path, name: str, record_property: Any) -> None:
    overrides = {} if name == "published kind" else ODD_TEXT
    reference = qwen25(3, vision=VARIANTS[name], **overrides)
    reference.config.image_token_id = pad = 7
    reference.save_pretrained(tmp_path)
    merge = reference.config.vision_config.spatial_merge_size
    grids = GRIDS[name], (merge, 6 * merge)
    squares = [(rows // merge, columns // merge) for rows, columns in grids]
    count = squares[0][0] * squares[0][1]
    places = [ImagePosition(5, squares[0]), ImagePosition(5 + count + 3, squares[1])]
    length = 5 + count + 3 + 6 + 20
    ids = np.random.default_rng(0).integers(8, 250, (2, length), dtype=np.int32)
    for first, (rows, columns) in places:
        ids[:, first : first + rows * columns] = pad
    mask = np.arange(length) < np.array([[length], [length - 9]])
    patches = [drawn(reference, grid) for grid in grids]
    images = [
        diffusers_features(reference, *inputs_of_image)
        for inputs_of_image in zip(patches, grids, strict=True)
    ]

    model = atelier_text(tmp_path)
    run = jax.jit(lambda ids, mask, images: model.encode_with_images(ids, mask, images, places))
    with torch.no_grad():
        output = reference(
            torch.tensor(ids).long(),
            attention_mask=torch.tensor(mask).long(),
            pixel_values=torch.tensor(np.concatenate(patches * 2)),
            image_grid_thw=torch.tensor([[1, *grid] for grid in grids] * 2),
            mm_token_type_ids=torch.tensor(ids == pad).int(),
            output_hidden_states=True,
        )
    expected = output.hidden_states[-1].numpy() * mask[..., None]
    gap = largest(run(ids, mask, images) * mask[..., None], expected)
    record_property("relative", gap)
    assert gap < TOLERANCE
    plain = jax.jit(
        lambda ids, mask: model.encoded(model.embedded(ids), mask, model._rotary_table(flat))
    )
    flat = np.tile(np.arange(length), (3, 1))
    assert largest(plain(ids, mask) * mask[..., None], expected) > 1000 * TOLERANCE


def test_positions_around_images() -> None:
    expected = [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6, 6, 8],
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 6, 7, 8],
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 6, 6, 8],
    ]
    places = [ImagePosition(2, (2, 3)), ImagePosition(9, (2, 1))]
    np.testing.assert_array_equal(positions_with_images(12, places), expected)
    np.testing.assert_array_equal(positions_with_images(4, []), [range(4)] * 3)


PROCESSORS = {
    "published kind": {"size": {"shortest_edge": 3136, "longest_edge": 20000}},
    "odd": {
        "size": {"shortest_edge": 300, "longest_edge": 2000},
        "patch_size": 3,
        "merge_size": 3,
        "temporal_patch_size": 1,
        "image_mean": [0.5, 0.4, 0.3],
        "image_std": [0.2, 0.3, 0.5],
    },
}


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("config", PROCESSORS.values(), ids=PROCESSORS)
def test_patches(tmp_path: Path, config: dict[str, Any], size: tuple[int, int]) -> None:
    shape = (size[1], size[0], 3)
    image = Image.fromarray(np.random.default_rng(2).integers(0, 256, shape, dtype=np.uint8))
    reference = Qwen2VLImageProcessorPil(**config)
    reference.save_pretrained(tmp_path)
    expected = reference(image, return_tensors="np")
    patches, grid = QwenPreprocessor.read(tmp_path)(image)
    assert expected["image_grid_thw"].tolist() == [[1, *grid]]
    assert patches.shape == expected["pixel_values"].shape
    np.testing.assert_allclose(patches, expected["pixel_values"], atol=1e-6)


def test_bounds_as_transformers_4_wrote_them() -> None:
    preprocessor = QwenPreprocessor.from_dict({"min_pixels": 3136, "max_pixels": 12845056})
    assert (preprocessor.min_pixels, preprocessor.max_pixels) == (3136, 12845056)
    assert preprocessor.size_of(1024, 1024) == (1036, 1036)


def test_a_processor_as_transformers_5_writes_it(tmp_path: Path) -> None:
    (tmp_path / "processor_config.json").write_text('{"image_processor": {"patch_size": 6}}')
    assert QwenPreprocessor.read(tmp_path).patch_size == 6


def test_unsupported_preprocessing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no preprocessor_config"):
        QwenPreprocessor.read(tmp_path)
    with pytest.raises(ValueError, match="patch_size"):
        QwenPreprocessor.from_dict({"patch_size": 0})
    with pytest.raises(ValueError, match="do_resize"):
        QwenPreprocessor.from_dict({"do_resize": False})
    with pytest.raises(ValueError, match="200:1"):
        QwenPreprocessor().size_of(1000, 4)
    for name, value in (("hidden_act", "gelu"), ("num_heads", 3), ("window_size", 7)):
        with pytest.raises(ValueError, match=name):
            QwenVisionConfig.from_dict({"vision_config": {**VISION, name: value}})


def test_published_size() -> None:
    """The published vision tower has 0.68 billion parameters."""
    module = abstract_module(QwenVisionModel, QwenVisionConfig.from_dict(QWEN2_5_VL_7B))
    leaves = jax.tree.leaves(nnx.state(module, nnx.Param))
    assert round(sum(leaf.size for leaf in leaves) / 1e9, 3) == 0.677
