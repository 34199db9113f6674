from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from models import registry
from models.checkpoint.folder import CheckpointError
from models.spec.notices import collected_notices
from models.wan.schedulers import FLOW, checkpoint_config, scheduler_of

CONFIGS: dict[str, dict[str, Any]] = {
    "transformer": {"num_attention_heads": 2, "attention_head_dim": 8, "text_dim": 24},
    "text_encoder": {"d_model": 24},
    "vae": {"_class_name": "AutoencoderKLWan"},
    "scheduler": {"_class_name": "UniPCMultistepScheduler"},
}


def write(folder: Path, class_name: str, **changes: dict[str, Any]) -> str:
    """Write a checkpoint's configs without weights."""
    index = {"_class_name": class_name, "transformer": ["diffusers", "WanTransformer3DModel"]}
    (folder / "model_index.json").write_text(json.dumps(index))
    for name, config in (CONFIGS | changes).items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))
    return str(folder)


def test_single_transformer_cannot_swap(tmp_path: Path) -> None:
    folder = write(tmp_path, "WanPipeline")
    with pytest.raises(CheckpointError, match="only one transformer"):
        registry.load("tiny", folder, "float32", {}, swap_experts=True)


def test_a_family_without_experts_has_nothing_to_swap(tmp_path: Path) -> None:
    folder = write(tmp_path, "FluxPipeline")
    with pytest.raises(CheckpointError, match="FluxPipeline has no experts"):
        registry.load("tiny", folder, "float32", {}, swap_experts=True)


@pytest.mark.parametrize(
    ("part", "config", "message"),
    [
        ("transformer", {"num_attention_heads": 0}, "num_attention_heads"),
        ("transformer", {"text_dim": 25}, "text_dim is 25, but text_encoder d_model is 24"),
        ("scheduler", {"_class_name": "PNDMScheduler"}, "PNDMScheduler is not served"),
    ],
)
def test_unservable_checkpoint_fails_before_weights_are_read(
    tmp_path: Path, part: str, config: dict[str, Any], message: str
) -> None:
    folder = write(tmp_path, "WanPipeline", **{part: CONFIGS[part] | config})
    with pytest.raises(CheckpointError, match=message):
        registry.load("tiny", folder, "float32", {})


def test_a_scheduler_that_is_not_served_is_replaced_by_the_operators() -> None:
    unserved = {"_class_name": "PNDMScheduler", "lower_order_final": False}
    with collected_notices() as notices:
        config = checkpoint_config(unserved, "UniPC")
    assert notices == ["the scheduler PNDMScheduler is not served; UniPC takes its place"]
    expected = {**FLOW, **unserved, "_class_name": "UniPCMultistepScheduler"}
    assert scheduler_of(config, None) == scheduler_of(expected, None)


def test_the_scheduler_of_a_checkpoint_may_be_heun() -> None:
    config = {"_class_name": "FlowMatchHeunDiscreteScheduler", "shift": 3.0}
    assert scheduler_of(checkpoint_config(config, None), None).shift == 3.0  # type: ignore[attr-defined]
