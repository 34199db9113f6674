"""Configs and specs of Krea 2: supported values, and refusals by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from models import published, registry
from models.checkpoint.folder import CheckpointError
from models.interface.pipeline import Pipeline
from models.krea2.config import Krea2Config
from models.loading.sources import SHAPES
from models.spec.request import RequestError


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"num_key_value_heads": 10}, "num_key_value_heads"),
        ({"text_num_attention_heads": 24, "text_num_key_value_heads": 24}, "text_hidden_dim"),
        ({"timestep_embed_dim": 255}, "timestep_embed_dim"),
        ({"axes_dims_rope": [32, 48, 50]}, "axes_dims_rope"),
        ({"num_layers": 0}, "num_layers"),
    ],
    ids=str,
)
def test_unsupported_configs_are_refused(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Krea2Config.from_dict(values)


def pipeline(name: str, folder: Path) -> Pipeline:
    published.write(name, folder)
    return registry.load(name, str(folder), "bfloat16", {}, reader=SHAPES)


def test_turbo_has_few_steps_without_guidance(tmp_path: Path) -> None:
    raw, turbo = (pipeline(name, tmp_path / name) for name in ("krea-2-raw", "krea-2-turbo"))
    for loaded, steps, guidance in ((raw, 28, 4.5), (turbo, 8, 0.0)):
        defaults = loaded.spec.defaults
        assert (defaults["num_inference_steps"], defaults["guidance_scale"]) == (steps, guidance)
        assert (defaults["width"], defaults["height"]) == (1024, 1024)
    for more in ({"width": 1000}, {"max_sequence_length": 7}, {"max_sequence_length": 1025}):
        with pytest.raises(RequestError) as error:
            raw.prepare({**raw.spec.defaults, "prompt": "words", "seed": 0, **more}, {})
        assert error.value.field == next(iter(more))


def test_schedule_of_turbo_does_not_depend_on_the_size(tmp_path: Path) -> None:
    raw, turbo = (pipeline(name, tmp_path / name) for name in ("krea-2-raw", "krea-2-turbo"))

    def times(loaded: Pipeline, side: int) -> list[float]:
        fields = {**loaded.spec.defaults, "prompt": "words", "seed": 0, "num_inference_steps": 3}
        steps = loaded.prepare({**fields, "width": side, "height": side}, {}).steps
        return [float(step.values["timestep"]) for step in steps]

    assert times(turbo, 512) == times(turbo, 2048)
    assert times(raw, 512)[1] < times(raw, 2048)[1]


def test_unknown_number_of_states_is_refused(tmp_path: Path) -> None:
    published.write("krea-2-raw", tmp_path)
    file = tmp_path / "model_index.json"
    file.write_text(file.read_text().replace("{", '{"text_encoder_select_layers": [2, 5],', 1))
    with pytest.raises(CheckpointError, match="num_text_layers is 12"):
        registry.load("krea", str(tmp_path), "bfloat16", {}, reader=SHAPES)
