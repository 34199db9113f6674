"""LTX-2's transformer compared with diffusers' in float32, on random weights and odd sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from models.checkpoint.folder import read_config
from models.checkpoint.key_mapping import target
from models.loading.abstract import abstract_module
from models.ltx.config import LTX2Config
from models.ltx.connectors import Contexts
from models.ltx.key_mapping import TRANSFORMER as RENAMES
from models.ltx.network import LatentSizes, LTX2Transformer, Perturbations, Times
from models.weights.loader import flat_parameters, load
from tests.parity.distances import relative_of_streams
from tests.parity.tiny import Config
from tests.parity.tiny_ltx import TRANSFORMER, TRANSFORMER_ODD, transformer

RELATIVE = 1e-5
"""Tolerance of either velocity, relative by norm."""
PLACES = LatentSizes((3, 4, 2), 7, 25.0)
TEXT_TOKENS = 5
SIGMAS = np.array([731.25, 12.5], np.float32)
CASES: dict[str, Config] = {
    "LTX-2.3": TRANSFORMER,
    "LTX-2.0, odd": TRANSFORMER_ODD,
    "text by a table alone": {**TRANSFORMER, "use_prompt_adaln_single": False},
    "neighbours": {**TRANSFORMER, "rope_type": "interleaved", "audio_cross_attn_mod": False},
}


def run(model: Any, *given: Any, perturbed: Perturbations | None = None) -> Any:
    @nnx.jit
    def compiled(model: Any, *given: Any) -> Any:
        return model(*given, PLACES, perturbed)

    return compiled(model, *given)


def inputs(config: Config) -> tuple[jax.Array, ...]:
    """Latents and texts of both streams."""
    normal = np.random.default_rng(1).standard_normal

    def draw(shape: tuple[int, ...]) -> jax.Array:
        return jnp.asarray(normal(shape, np.float32))

    projected = config.get("use_prompt_embeddings", True)
    widths = [config["cross_attention_dim"], config["audio_cross_attention_dim"]]
    texts = [config["caption_channels"]] * 2 if projected else widths
    return (
        draw((2, 24, config["in_channels"])),
        draw((2, 7, config["audio_in_channels"])),
        *(draw((2, TEXT_TOKENS, width)) for width in texts),
    )


def each_token() -> np.ndarray:
    """Timesteps of video tokens with a clean first frame."""
    return np.where(np.arange(24) < 8, 0, SIGMAS[:, None]).astype(np.float32)


def run_diffusers(
    reference: Any, config: Config, time: np.ndarray, **options: Any
) -> tuple[np.ndarray, np.ndarray]:
    video, audio, text, audio_text = (torch.tensor(np.asarray(array)) for array in inputs(config))
    frames, height, width = PLACES.grid
    with torch.no_grad():
        output = reference(
            hidden_states=video,
            audio_hidden_states=audio,
            encoder_hidden_states=text,
            audio_encoder_hidden_states=audio_text,
            timestep=torch.tensor(time),
            audio_timestep=torch.tensor(SIGMAS),
            sigma=torch.tensor(SIGMAS),
            num_frames=frames,
            height=height,
            width=width,
            fps=PLACES.fps,
            audio_num_frames=PLACES.audio_latents,
            **options,
        )
    return output.sample.numpy(), output.audio_sample.numpy()


def asked(config: Config, time: np.ndarray, crossing: np.ndarray) -> tuple[Any, ...]:
    video, audio, *texts = inputs(config)
    sigmas = jnp.asarray(SIGMAS)
    of_video = Times(jnp.asarray(time), jnp.asarray(crossing), sigmas)
    return (video, audio), Contexts(*texts), (of_video, Times(sigmas, sigmas, sigmas))


def run_atelier(reference: Any, folder: Path) -> LTX2Transformer:
    reference.save_pretrained(folder)
    config = LTX2Config.from_dict(read_config(folder.parent, folder.name))
    return load(abstract_module(LTX2Transformer, config), folder, RENAMES, dtype=jnp.float32)


@pytest.mark.parametrize("config", CASES.values(), ids=CASES)
def test_velocities(config: Config, tmp_path: Path, record_property: Any) -> None:
    reference = transformer(3, **config)
    expected = run_diffusers(reference, config, SIGMAS)
    gap = relative_of_streams(
        run(run_atelier(reference, tmp_path), *asked(config, SIGMAS, SIGMAS)), expected
    )
    record_property("relative", gap)
    print(f"{gap:.1e}")
    assert gap < RELATIVE
    assert min(velocity.std() for velocity in expected) > 0.1


@pytest.mark.parametrize("others", [True, False], ids=["2.3", "2.0"])
def test_a_timestep_of_each_token(others: bool, tmp_path: Path) -> None:
    """Cross-attention of the streams uses the other stream's sigma in 2.3, and its own timesteps in
    2.0.
    """
    reference = transformer(3, **TRANSFORMER)
    expected = run_diffusers(reference, TRANSFORMER, each_token(), use_cross_timestep=others)
    crossing = SIGMAS if others else each_token()
    model = run_atelier(reference, tmp_path)
    assert (
        relative_of_streams(run(model, *asked(TRANSFORMER, each_token(), crossing)), expected)
        < RELATIVE
    )
    wrong = each_token() if others else SIGMAS
    assert (
        relative_of_streams(run(model, *asked(TRANSFORMER, each_token(), wrong)), expected)
        > 10 * RELATIVE
    )


def test_rows_without_a_part(tmp_path: Path) -> None:
    """The first row without self-attention in a block, the second without the other stream."""
    reference = transformer(3, **TRANSFORMER)
    model = run_atelier(reference, tmp_path)
    network_inputs = asked(TRANSFORMER, SIGMAS, SIGMAS)
    first, second = jnp.array([True, False]), jnp.array([False, True])
    blocks = run_diffusers(reference, TRANSFORMER, SIGMAS, spatio_temporal_guidance_blocks=[1])
    isolated = run_diffusers(reference, TRANSFORMER, SIGMAS, isolate_modalities=True)
    expected = tuple(
        np.stack([first_row[0], second_row[1]])
        for first_row, second_row in zip(blocks, isolated, strict=True)
    )
    output = run(model, *network_inputs, perturbed=Perturbations((1,), first, second))
    assert relative_of_streams(output, expected) < RELATIVE
    for first_row in (blocks, isolated):
        assert relative_of_streams(run(model, *network_inputs), first_row) > 1000 * RELATIVE
    with pytest.raises(ValueError, match=r"blocks \[3\]"):
        run(model, *network_inputs, perturbed=Perturbations((3,), first, second))


BITES = {
    "gate of heads": (TRANSFORMER, "blocks.audio.self_attention.gate.kernel"),
    "table of the text": (TRANSFORMER, "blocks.video.text_table"),
    "table of crossing": (TRANSFORMER, "blocks.audio.cross_table"),
    "video attends to audio": (TRANSFORMER, "blocks.video.cross_attention.v.kernel"),
    "audio attends to video": (TRANSFORMER, "blocks.audio.cross_attention.v.kernel"),
    "time of the text": (TRANSFORMER, "video.text_time.vectors.linear.kernel"),
    "gate of crossing": (TRANSFORMER_ODD, "audio.gate_time.vectors.linear.kernel"),
    "projection of text": (TRANSFORMER_ODD, "audio.text_in.up.kernel"),
    "last table": (TRANSFORMER_ODD, "video.table"),
}


@pytest.mark.parametrize(("config", "path"), BITES.values(), ids=BITES)
def test_changed_array_breaks_parity(config: Config, path: str, tmp_path: Path) -> None:
    reference = transformer(3, **config)
    damaged = run_atelier(reference, tmp_path)
    leaf = flat_parameters(damaged)[path]
    leaf[...] = leaf[...] * 1.03
    expected = run_diffusers(reference, config, SIGMAS)
    assert (
        relative_of_streams(run(damaged, *asked(config, SIGMAS, SIGMAS)), expected) > 10 * RELATIVE
    )


@pytest.mark.parametrize(
    "change",
    [
        {"norm_eps": 1e-6},
        {"rope_theta": 400.0},
        {"causal_offset": 1},
        {"base_width": 91},
        {"audio_hop_length": 190},
        {"audio_pos_embed_max_pos": 8},
        {"cross_attn_timestep_scale_multiplier": 310},
    ],
    ids=str,
)
def test_wrong_config_breaks_parity(change: Config, tmp_path: Path) -> None:
    reference = transformer(3, **TRANSFORMER_ODD)
    expected = run_diffusers(reference, TRANSFORMER_ODD, SIGMAS)
    reference.register_to_config(**change)
    output = run(run_atelier(reference, tmp_path), *asked(TRANSFORMER_ODD, SIGMAS, SIGMAS))
    assert relative_of_streams(output, expected) > 10 * RELATIVE


@pytest.mark.parametrize("config", CASES.values(), ids=CASES)
def test_every_array_of_the_reference_has_a_place(config: Config, tmp_path: Path) -> None:
    reference = transformer(3, **config)
    assert None not in [target(key, RENAMES) for key in reference.state_dict()]
    leaves = flat_parameters(run_atelier(reference, tmp_path))
    assert sum(p.numel() for p in reference.parameters()) == sum(
        leaf.get_value().size for leaf in leaves.values()
    )


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"num_layers": 0}, "num_layers"),
        ({"patch_size": 2}, "patch_size"),
        ({"rope_type": "spiral"}, "rope_type"),
        ({"out_channels": 7}, "out_channels"),
        ({"attention_head_dim": 13}, "attention_head_dim"),
        ({"audio_cross_attention_dim": 25}, "audio_cross_attention_dim"),
        ({"num_attention_heads": 2}, "num_attention_heads"),
        ({"use_keyframes_abs_pos_embedding": True}, "use_keyframes"),
        ({"use_prompt_embeddings": True, "cross_attention_dim": 7}, "cross_attention_dim"),
    ],
    ids=str,
)
def test_configs_that_are_not_served(values: Config, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        LTX2Config.from_dict({**TRANSFORMER, **values})
