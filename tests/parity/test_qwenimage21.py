"""Qwen-Image 2.1 compared with diffusers' pipeline in the same process, on small odd checkpoints.

Bounds as in test_flux.py: latents of each step to a relative 1e-4, images to 60 dB and two grey
levels. Both have alpha in one of the variants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from models.checkpoint.folder import read_config
from models.loading.abstract import abstract_module
from models.spec.request import RequestError
from models.text.qwen3_vl import Qwen3VLConfig, Qwen3VLEncoder, renames_of
from models.weights.loader import load
from tests.parity.distances import largest, relative
from tests.parity.pairs import (
    Pair,
    drawn_by,
    loud_behind_captions,
    pairs_of,
    run_atelier,
    zeroed,
)
from tests.parity.test_flux import RELATIVE, assert_far, assert_same
from tests.parity.test_qwen3 import run
from tests.parity.tiny_qwenimage21 import make_qwenimage21, pipeline_of, qwen3_vl

SIGMAS = [1.0, 0.9, 0.8, 0.35]
ODD: dict[str, Any] = {
    "transformer": {"num_layers": 2, "num_attention_heads": 5, "axes_dims_rope": (2, 8, 4)},
    "vae": {
        "base_dim": 6,
        "decoder_base_dim": 10,
        "z_dim": 5,
        "dim_mult": [2, 1, 1],
        "num_res_blocks": 2,
        "temperal_downsample": [True, True],
        "in_channels": 3,
        "out_channels": 3,
    },
    "text_encoder": {
        "hidden_size": 42,
        "num_hidden_layers": 2,
        "num_attention_heads": 7,
        "num_key_value_heads": 1,
        "rms_norm_eps": 1e-3,
        "rope_parameters": {"rope_theta": 1e4, "rope_type": "default"},
    },
    "scheduler": {"use_dynamic_shifting": False, "shift": 2.5, "shift_terminal": None},
    "sample_sigmas": SIGMAS,
}
CHECKPOINTS: dict[str, dict[str, Any]] = {"published": {}, "odd": ODD}
PROMPT = "a red circle on a blue background"
LONG = f"{PROMPT} and a green square below the yellow triangle above the star " * 2
REQUESTS: dict[str, dict[str, Any]] = {
    "no negative prompt": {},
    "prompts of two lengths": {"prompt": LONG, "negative_prompt": "star", "true_cfg_scale": 4.0},
    "empty negative prompt": {"negative_prompt": "", "true_cfg_scale": 2.5, "width": 32},
    "scale that guides nothing": {"negative_prompt": LONG, "true_cfg_scale": 1.0},
    "sigmas": {"negative_prompt": LONG, "true_cfg_scale": 5.0, "sigmas": SIGMAS},
}
BASE = {
    "prompt": PROMPT,
    "width": 64,
    "height": 96,
    "num_inference_steps": 4,
    "seed": 1234,
}
LIMIT = {"max_sequence_length": 300}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Pair]:
    root = tmp_path_factory.mktemp("qwenimage21")
    return pairs_of(root, CHECKPOINTS, make_qwenimage21, pipeline_of)


@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_text_to_image(
    pairs: Mapping[str, Pair], checkpoint: str, request_name: str, record_property: Any
) -> None:
    pair, request = pairs[checkpoint], BASE | REQUESTS[request_name]
    result = run_atelier(pair.atelier, request | LIMIT)
    assert_same(result, drawn_by(pair.diffusers, request), record_property)


DROPPED = {
    "norm of captions": ("transformer", "text_in", "norm", "scale"),
    "modulation": ("transformer", "modulation", "linear", "kernel"),
    "key norm": ("transformer", "blocks", "heads", "k_norm", "scale"),
    "last modulation": ("transformer", "out_modulation", "linear", "kernel"),
    "gate of the encoder": ("text_encoder", "blocks", "gate", "kernel"),
}


@pytest.mark.parametrize("path", DROPPED.values(), ids=DROPPED)
def test_dropped_term_breaks_parity(pairs: Mapping[str, Pair], path: tuple[str, ...]) -> None:
    pair, request = pairs["published"], BASE | REQUESTS["prompts of two lengths"]
    damaged = zeroed(pair.atelier.pipeline.weights, *path)
    result = run_atelier(pair.atelier, request | LIMIT, weights=damaged)
    assert_far(result, drawn_by(pair.diffusers, request))


SPOILED: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "a caption that counts its padding": lambda row: {"lengths": row["lengths"] + 32},
    "prompts the wrong way round": lambda row: {
        name: row[name][::-1] for name in ("captions", "lengths")
    },
    "one token more of the template": lambda row: {
        "captions": row["captions"][:, 1:],
        "lengths": row["lengths"] - 1,
    },
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_wrong_row_breaks_parity(
    pairs: Mapping[str, Pair], spoil: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    pair, request = pairs["published"], BASE | REQUESTS["prompts of two lengths"]
    result = run_atelier(pair.atelier, request | LIMIT, spoil=lambda row: {**row, **spoil(row)})
    assert_far(result, drawn_by(pair.diffusers, request))


def test_caption_padding_has_no_effect(pairs: Mapping[str, Pair]) -> None:
    """Neither the padding's content nor its length affects the latents."""
    pair, request = pairs["published"], BASE | REQUESTS["prompts of two lengths"] | LIMIT
    plain = run_atelier(pair.atelier, request)
    loud = run_atelier(pair.atelier, request, spoil=loud_behind_captions)
    np.testing.assert_array_equal(plain.latents[-1], loud.latents[-1])
    longer = run_atelier(pair.atelier, request | {"max_sequence_length": 320})
    assert relative(longer.latents[-1], plain.latents[-1]) < RELATIVE


def test_steps_other_than_the_checkpoints_are_evenly_spaced(pairs: Mapping[str, Pair]) -> None:
    pipeline = pairs["odd"].atelier.pipeline
    assert pipeline.spec.defaults["num_inference_steps"] == len(SIGMAS)
    steps = {
        count: pipeline.prepare(BASE | LIMIT | {"num_inference_steps": count}, {}).steps
        for count in (2, len(SIGMAS))
    }
    shifted = [2.5 * sigma / (1 + 1.5 * sigma) for sigma in (1.0, 0.5)]
    times = [float(step.values["timestep"]) / 1000 for step in steps[2]]
    assert times == pytest.approx(shifted)
    assert float(steps[len(SIGMAS)][1].values["timestep"]) == pytest.approx(2250 / 2.35)


def test_single_step_of_a_stretched_schedule_is_rejected(pairs: Mapping[str, Pair]) -> None:
    with pytest.raises(RequestError, match="2 or more"):
        request = BASE | LIMIT | {"num_inference_steps": 1}
        pairs["published"].atelier.pipeline.prepare(request, {})


def test_weights_are_all_read(pairs: Mapping[str, Pair]) -> None:
    """The parameter count equals diffusers', so no parameter keeps its initial value."""
    pair = pairs["published"]
    leaves = jax.tree.leaves(pair.atelier.pipeline.weights.transformer)
    expected = sum(p.numel() for p in pair.diffusers.transformer.parameters())
    assert sum(leaf.size for leaf in leaves) == expected


def test_state_before_the_encoders_last_norm(tmp_path: Any, record_property: Any) -> None:
    reference = qwen3_vl(3)
    reference.save_pretrained(tmp_path)
    config = Qwen3VLConfig.from_dict(read_config(tmp_path.parent, tmp_path.name))
    module = abstract_module(Qwen3VLEncoder, config, (-1,))
    encoder = load(module, tmp_path, renames_of(config, (-1,)), dtype=jnp.float32)
    ids = np.random.default_rng(0).integers(0, 250, (1, 19), dtype=np.int32)
    language = reference.model.language_model
    language.norm = torch.nn.Identity()
    with torch.no_grad():
        expected = language(torch.tensor(ids)).last_hidden_state.numpy()
    gap = largest(run(encoder, ids), expected)
    record_property("relative", gap)
    print(f"{gap:.1e}")
    assert gap < 1e-5
