"""Qwen3-VL's vision encoder, and texts with images, compared with transformers in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from models.checkpoint.folder import read_config
from models.loading.abstract import abstract_module
from models.text.qwen3_vl import Qwen3VLConfig, Qwen3VLEncoder, renames_of
from models.text.qwen25 import ImagePosition
from models.vision.qwen3_vl import RENAMES, Qwen3VisionConfig, Qwen3VisionModel
from models.weights.loader import load
from tests.parity.distances import largest
from tests.parity.tiny_qwenimage21 import qwen3_vl

TOLERANCE = 1e-5
GRIDS = {"one square": (2, 2), "wide": (4, 10), "smaller than the learned grid": (2, 4)}


@nnx.jit(static_argnames="grid")
def run(model: Qwen3VisionModel, patches: np.ndarray, grid: tuple[int, int]) -> Any:
    return model(patches, grid)


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
def test_features(tmp_path: Path, grid: tuple[int, int], record_property: Any) -> None:
    reference = qwen3_vl(3)
    reference.save_pretrained(tmp_path)
    config = Qwen3VisionConfig.from_dict(read_config(tmp_path.parent, tmp_path.name))
    network = load(abstract_module(Qwen3VisionModel, config), tmp_path, RENAMES, dtype=jnp.float32)
    pixels = 3 * config.temporal_patch_size * config.patch_size**2
    shape = (grid[0] * grid[1], pixels)
    patches = np.random.default_rng(2).standard_normal(shape, np.float32)
    with torch.no_grad():
        expected = reference.model.visual(torch.tensor(patches), torch.tensor([[1, *grid]]))
    features = run(network, patches, grid)
    gaps = [largest(features.tokens, expected.pooler_output.numpy())]
    for added, layer in zip(features.added, expected.deepstack_features, strict=True):
        gaps.append(largest(added, layer.numpy()))
    record_property("relative", max(gaps))
    print(" ".join(f"{gap:.1e}" for gap in gaps))
    assert max(gaps) < TOLERANCE


def test_text_with_images(tmp_path: Path, record_property: Any) -> None:
    reference = qwen3_vl(3, num_hidden_layers=5)
    reference.save_pretrained(tmp_path)
    files = read_config(tmp_path.parent, tmp_path.name)
    vision_config, config = Qwen3VisionConfig.from_dict(files), Qwen3VLConfig.from_dict(files)
    vision = load(
        abstract_module(Qwen3VisionModel, vision_config), tmp_path, RENAMES, dtype=jnp.float32
    )
    module = abstract_module(Qwen3VLEncoder, config, (-1,))
    encoder = load(module, tmp_path, renames_of(config, (-1,)), dtype=jnp.float32)
    grids, pad = ((4, 6), (2, 4)), reference.config.image_token_id
    counts = [rows * columns // 4 for rows, columns in grids]
    places = [
        ImagePosition(3, (2, 3)),
        ImagePosition(3 + counts[0] + 2, (1, 2)),
    ]
    draw = np.random.default_rng(4)
    ids = draw.integers(0, 250, (1, 24), dtype=np.int32)
    for place, count in zip(places, counts, strict=True):
        ids[:, place.first : place.first + count] = pad
    pixels = 3 * vision_config.temporal_patch_size * vision_config.patch_size**2
    patches = [draw.standard_normal((r * c, pixels), np.float32) for r, c in grids]
    reference.model.language_model.norm = torch.nn.Identity()
    with torch.no_grad():
        expected = reference.model(
            input_ids=torch.tensor(ids).long(),
            attention_mask=torch.ones(ids.shape, dtype=torch.long),
            pixel_values=torch.tensor(np.concatenate(patches)),
            image_grid_thw=torch.tensor([[1, *grid] for grid in grids]),
            mm_token_type_ids=torch.tensor(ids == pad).int(),
        ).last_hidden_state.numpy()
    features = [run(vision, *pair) for pair in zip(patches, grids, strict=True)]
    output = encoder.encode_with_images(
        jnp.asarray(ids),
        jnp.ones(ids.shape, bool),
        places,
        [image.tokens for image in features],
        [image.added for image in features],
    )
    gap = largest(output, expected)
    record_property("relative", gap)
    print(f"{gap:.1e}")
    assert gap < TOLERANCE
