"""Keys of adapter files that are skipped with a warning, and keys that are not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from models.adapters.files.adapter import AdapterError, AdapterSummary
from models.adapters.files.formats import inspect, read
from tests.models.adapters.published_names import published, write
from tests.models.adapters.test_kinds import Arrays

WIDTH = 3072
Q = "transformer.transformer_blocks.0.attn.to_q"
FUSED = "double_blocks.0.img_attn.qkv"
ONES = np.ones((2, 2), np.float32)


def matrices(name: str, inputs: int = WIDTH, outputs: int = WIDTH, seed: int = 0) -> Arrays:
    rng = np.random.default_rng(seed)
    return {
        f"{name}.lora_A.weight": rng.standard_normal((2, inputs), np.float32),
        f"{name}.lora_B.weight": rng.standard_normal((outputs, 2), np.float32),
    }


def inspected(path: Path, arrays: Arrays, model: str = "flux") -> AdapterSummary:
    """Return the summary, after checking that reading skips the same keys."""
    file = write(path / "a.safetensors", arrays)
    summary = inspect(file, published(model))
    assert read(file, published(model)).ignored == summary.ignored
    return summary


WITHOUT_EFFECT: dict[str, tuple[Arrays, str]] = {
    "a marker": ({"__x0__": ONES}, "keys without effect: __x0__"),
    "a marker after a prefix": (
        {"diffusion_model.__32x32__": ONES},
        "keys without effect: diffusion_model.__32x32__",
    ),
    "an empty marker": (
        {"__index_timestep_zero__": np.zeros(0, np.float32)},
        "keys without effect: __index_timestep_zero__",
    ),
    "an empty array": ({"x.lora_A.weight": np.zeros((0, 4), np.float32)}, "keys without effect"),
    "a layer of empty arrays": (
        {
            "transformer_blocks.1.attn.to_q.lora_A.weight": np.zeros((0, WIDTH), np.float32),
            "transformer_blocks.1.attn.to_q.lora_B.weight": np.zeros((WIDTH, 0), np.float32),
        },
        "keys without effect: transformer_blocks.1.attn.to_q",
    ),
    "a step": ({"global_step": np.array(1000, np.int64)}, "keys without effect: global_step"),
    "an epoch": ({"epoch": np.array([3.0], np.float64)}, "keys without effect: epoch"),
    "positions": (
        {"text_model.embeddings.position_ids": np.arange(77, dtype=np.int64)[None]},
        "keys without effect: text_model.embeddings.position_ids",
    ),
    "zeros": ({"x.lora_A.weight": 0 * ONES}, "keys without effect: x.lora_A.weight"),
    "T5": ({"text_encoders.t5xxl.transformer.x.lora_A.weight": ONES}, "keys without effect"),
    "kohya's T5": ({"lora_te3_encoder_block_0.lora_up.weight": ONES}, "keys without effect"),
    "a layer's rank": ({f"{Q}.rank": np.array(4, np.int64)}, f"keys without effect: {Q}.rank"),
    "norms of kohya's GGPO": (
        {f"{Q}.weight_norms": ONES, f"{Q}.combined_weight_norms": ONES},
        f"keys without effect: {Q}.combined_weight_norms, {Q}.weight_norms",
    ),
    "positions as floats": (
        {"lora_te1_text_model_embeddings_position_ids": ONES},
        "keys without effect: lora_te1_text_model_embeddings_position_ids",
    ),
    "an embedding": (
        {"bundle_emb.cat.clip_l": ONES, "bundle_emb.cat.t5": ONES},
        "bundled embeddings, which are not used: bundle_emb.cat.clip_l, bundle_emb.cat.t5",
    ),
}


@pytest.mark.parametrize("case", WITHOUT_EFFECT)
def test_ignored_keys_give_a_warning(case: str, tmp_path: Path) -> None:
    arrays, warning = WITHOUT_EFFECT[case]
    summary = inspected(tmp_path, matrices(Q) | arrays)
    assert summary.ignored == tuple(arrays)
    assert [text.startswith(warning) for text in summary.warnings] == [True]
    assert summary.rank == 2


NOT_PASSED_OVER: dict[str, Arrays] = {
    "a scale of a layer": {f"{Q}.lora_A.weight_scale": np.array(2, np.float32)},
    "a layer of another model": {"x.lora_A.weight": ONES},
    "VACE's layers in a model without": {"vace_blocks.0.self_attn.q.lora_A.weight": ONES},
}


@pytest.mark.parametrize("case", NOT_PASSED_OVER)
def test_keys_that_could_change_the_image_are_refused(case: str, tmp_path: Path) -> None:
    (key,) = NOT_PASSED_OVER[case]
    file = write(tmp_path / "a.safetensors", matrices(Q) | NOT_PASSED_OVER[case])
    with pytest.raises(AdapterError, match=f"keys that this model has no layer for: {key}"):
        inspect(file, published("flux"))


@pytest.mark.parametrize(
    "name",
    [
        "diffusion_model.blocks.0.cross_attn.k_img",
        "transformer.blocks.39.attn2.add_v_proj",
        "lora_unet_blocks_7_cross_attn_v_img",
        "diffusion_model.img_emb.proj.1",
        "transformer.condition_embedder.image_embedder.ff.net.2",
    ],
)
def test_adapters_of_image_to_video_work_on_text_to_video(name: str, tmp_path: Path) -> None:
    arrays = matrices("diffusion_model.blocks.0.self_attn.q", 5120, 5120)
    summary = inspected(tmp_path, arrays | matrices(name, 7, 5), "wan")
    listed = ", ".join(f"{name}.lora_{letter}.weight" for letter in "AB")
    assert summary.warnings == (f"layers that this model does not have: {listed}",)
    assert summary.networks == ("transformer",)


@pytest.mark.parametrize(
    "key", ["blocks.0.diff_m", "blocks.3.modulation.diff", "head.modulation.diff"]
)
def test_differences_of_modulations_are_passed_over_as_in_diffusers(
    key: str, tmp_path: Path
) -> None:
    """Differences of modulations are skipped: public LoRAs that were extracted from distilled
    checkpoints of Wan have them."""
    arrays = matrices("diffusion_model.blocks.0.self_attn.q", 5120, 5120)
    summary = inspected(tmp_path, arrays | {f"diffusion_model.{key}": np.ones((1, 6, 4))}, "wan")
    assert summary.warnings == (f"keys without effect: diffusion_model.{key}",)


def test_file_with_only_absent_layers_is_rejected(tmp_path: Path) -> None:
    file = write(tmp_path / "a.safetensors", matrices("blocks.0.cross_attn.k_img"))
    with pytest.raises(AdapterError, match="no low-rank layers at all"):
        inspect(file, published("wan"))


def fused_and_parts() -> tuple[Arrays, Arrays]:
    fused = matrices(FUSED, WIDTH, 3 * WIDTH)
    ups = np.split(fused[f"{FUSED}.lora_B.weight"], 3)
    parts = {}
    for letter, up in zip("qkv", ups, strict=True):
        name = f"transformer.transformer_blocks.0.attn.to_{letter}"
        parts[f"{name}.lora_A.weight"] = fused[f"{FUSED}.lora_A.weight"]
        parts[f"{name}.lora_B.weight"] = up
    return fused, parts


@pytest.mark.parametrize("is_fused_first", [True, False])
def test_a_fused_layer_next_to_its_parts_is_read_once(is_fused_first: bool, tmp_path: Path) -> None:
    fused, parts = fused_and_parts()
    arrays = fused | parts if is_fused_first else parts | fused
    summary = inspected(tmp_path, arrays)
    listed = f"{FUSED}.lora_A.weight, {FUSED}.lora_B.weight"
    assert summary.warnings == (f"layers that the file has by another name, too: {listed}",)
    adapter = read(tmp_path / "a.safetensors", published("flux"))
    changes = adapter.networks["transformer"].values()
    assert len(changes) == 3
    for change, key in zip(changes, [key for key in parts if "lora_B" in key], strict=True):
        np.testing.assert_array_equal(change.up.float32(), parts[key])


def test_two_names_of_one_layer_with_equal_contents(tmp_path: Path) -> None:
    kohya = "lora_unet_transformer_blocks_0_attn_to_q"
    arrays = matrices(Q) | matrices(kohya)
    assert inspected(tmp_path, arrays).ignored == (
        f"{kohya}.lora_A.weight",
        f"{kohya}.lora_B.weight",
    )


@pytest.mark.parametrize("wrong", ["other numbers", "parts that are missing"])
def test_a_fused_layer_that_differs_from_its_parts_is_refused(wrong: str, tmp_path: Path) -> None:
    fused, parts = fused_and_parts()
    if wrong == "other numbers":
        parts[f"{Q}.lora_B.weight"] = parts[f"{Q}.lora_B.weight"] + 1
    else:
        parts = {key: array for key, array in parts.items() if "to_v" not in key}
    file = write(tmp_path / "a.safetensors", fused | parts)
    with pytest.raises(AdapterError, match="the same layer by two names; keep one of them"):
        inspect(file, published("flux"))


@pytest.mark.parametrize(
    "name",
    [
        "base_model.model.transformer.transformer_blocks.0.attn.to_q",
        "model.transformer_blocks.0.attn.to_q",
        "transformer_blocks.0.attn.to_q",
        "lycoris_transformer_blocks_0_attn_to_q",
        "transformer_transformer_blocks_0_attn_to_q",
        "transformer_blocks_0_attn_to_q",
        "diffusion_model_double_blocks_0_img_attn_proj",
        "double_blocks_0_img_attn_proj",
    ],
)
def test_prefixes_of_any_length(name: str, tmp_path: Path) -> None:
    assert inspected(tmp_path, matrices(name)).ignored == ()
