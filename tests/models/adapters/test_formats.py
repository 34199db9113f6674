"""Invalid adapter files: each is refused with a specific message, never with a traceback."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from models.adapters.files.adapter import AdapterError
from models.adapters.files.formats import inspect, read
from models.adapters.files.peft_folder import METADATA, with_config
from tests.models.adapters.published_names import published, write

Arrays = dict[str, np.ndarray]

Q, PROJ = "transformer.transformer_blocks.0.attn.to_q", "transformer.transformer_blocks.0.ff.net.2"
WIDTH, WIDE = 3072, 12288
"""Feature sizes of Flux."""


def low_rank(name: str, inputs: int, outputs: int, rank: int = 2) -> Arrays:
    return {
        f"{name}.lora_A.weight": np.full((rank, inputs), 0.5, np.float32),
        f"{name}.lora_B.weight": np.full((outputs, rank), 0.25, np.float32),
    }


def sound() -> Arrays:
    return low_rank(Q, WIDTH, WIDTH) | low_rank(PROJ, WIDE, WIDTH, 5)


def alpha(value: object, kind: type = np.float32) -> Callable[[Arrays], Arrays]:
    return lambda arrays: arrays | {f"{Q}.alpha": np.array(value, kind)}


def replaced(part: str, shape: tuple[int, ...]) -> Callable[[Arrays], Arrays]:
    return lambda arrays: arrays | {f"{Q}.{part}": np.ones(shape, np.float32)}


def renamed(old: str, new: str) -> Callable[[Arrays], Arrays]:
    return lambda arrays: {key.replace(old, new): array for key, array in arrays.items()}


ONES = np.ones((2, 2), np.float32)

WRONG: dict[str, tuple[Callable[[Arrays], Arrays], str]] = {
    "OFT": (lambda a: a | {f"{Q}.oft_blocks": ONES}, "^OFT: adapters of this kind are not served"),
    "BOFT": (lambda a: a | {f"{Q}.boft_R": ONES}, "^BOFT"),
    "a stranger": (lambda a: a | {"x.lora_A.weight": ONES}, "no layer for: x.lora_A.weight$"),
    "many strangers": (
        lambda a: a | {f"{n}.lora_A.weight": ONES for n in range(9)},
        "4.lora_A.weight and 4 more",
    ),
    "an ugly stranger": (lambda a: a | {"x\n\x00" * 400: ONES}, r"no layer for: 'x\\n\\x00.{30,}…"),
    "no up": (
        lambda a: {k: v for k, v in a.items() if k != f"{Q}.lora_B.weight"},
        r"up \(lora_B\)",
    ),
    "no down": (
        lambda a: {k: v for k, v in a.items() if k != f"{Q}.lora_A.weight"},
        r"down \(lora_A\)",
    ),
    "ranks that differ": (replaced("lora_A.weight", (3, WIDTH)), "do not fit each other"),
    "up for down": (
        lambda a: {key.translate(str.maketrans("AB", "BA")): array for key, array in a.items()},
        "do not fit each other|made for another base",
    ),
    "another width": (
        lambda a: low_rank(Q, 1536, 1536),
        "from 1536 to 1536 features there and from 3072 to 3072.*another base model",
    ),
    "a convolution": (replaced("lora_A.weight", (2, WIDTH, 3, 3)), "window 3x3 there"),
    "a vector": (replaced("lora_A.weight", (2 * WIDTH,)), "is no matrix"),
    "nothing in it": (replaced("lora_A.weight", (0, WIDTH)), "is empty"),
    "a rank of no matrix": (
        lambda a: a | low_rank(Q, WIDTH, WIDTH, 2 * WIDTH + 1),
        f"rank {2 * WIDTH + 1} of a matrix of {WIDTH} x {WIDTH}; reduce it",
    ),
    "an alpha that is NaN": (alpha(np.nan), "NaN or infinity"),
    "an alpha beyond measure": (alpha(1e9), r"an alpha of 1e\+09 at rank 2"),
    "an alpha of several numbers": (alpha([1, 2]), "not a single number"),
    "an alpha alone": (
        lambda a: a | {f"{Q.replace('to_q', 'to_k')}.alpha": np.ones((), np.float32)},
        "an alpha without low-rank matrices",
    ),
    "whole numbers": (
        lambda a: a | {f"{Q}.lora_A.weight": np.ones((2, WIDTH), np.int64)},
        "I64: weights of this type are not read",
    ),
    "NaN": (
        lambda a: a | {f"{Q}.lora_B.weight": np.full((WIDTH, 2), np.nan, np.float32)},
        f"NaN or infinity in {Q}.lora_B.weight",
    ),
    "one layer by two names": (
        lambda a: a | low_rank(f"lora_unet_{Q[12:].replace('.', '_')}", WIDTH, WIDTH, 3),
        "the same layer by two names; keep one of them",
    ),
    "one layer alone and fused": (
        lambda a: a | low_rank("double_blocks.0.img_attn.qkv", WIDTH, 3 * WIDTH),
        "the same layer by two names",
    ),
    "one part twice": (
        lambda a: a | {f"{Q}.lora_down.weight": np.ones((2, WIDTH), np.float32)},
        "both are the same part",
    ),
    "a matrix and its ranks": (
        lambda a: a | {f"{Q}.diff": np.ones((WIDTH, WIDTH), np.float32)},
        "both low-rank matrices and a whole one",
    ),
    "another bias": (replaced("diff_b", (7,)), "a bias of shape"),
    "nothing at all": (lambda a: {}, "no low-rank layers at all"),
    "only zeros for strangers": (
        lambda a: {"x.lora_A.weight": np.zeros((2, 2), np.float32)},
        "no low-rank layers at all",
    ),
    "for SDXL": (
        renamed(Q, "lora_unet_input_blocks_4_1_transformer_blocks_1_attn1_to_q"),
        "no layer for",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_invalid_file_is_named_with_its_reason(case: str, tmp_path: Path) -> None:
    change, reason = WRONG[case]
    file = write(tmp_path / "a.safetensors", change(sound()))
    for use in (inspect, read):
        with pytest.raises(AdapterError, match=reason):
            use(file, published("flux"))


OTHERS: dict[str, tuple[tuple[str, ...], str]] = {
    "Stable Diffusion 1 or 2": (
        (
            "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q",
            "lora_te_text_model_encoder_layers_0_mlp_fc1",
        ),
        "flux sdxl wan",
    ),
    "SDXL": (
        ("lora_unet_input_blocks_8_1_transformer_blocks_9_attn1_to_q", "lora_te2_x"),
        "flux wan",
    ),
    "Flux": (("lora_unet_double_blocks_0_img_attn_qkv",), "sdxl wan"),
    "Wan": (("diffusion_model.blocks.0.self_attn.q",), "flux sdxl"),
    "Stable Diffusion 3": (("transformer.transformer_blocks.0.attn.add_q_proj_x",), "sdxl wan"),
    "Qwen-Image": (("transformer.transformer_blocks.0.img_mlp.net.0.proj",), "flux sdxl wan"),
    "HunyuanVideo": (("diffusion_model.double_blocks.0.img_attn_qkv",), "flux sdxl wan"),
    "Chroma": (("lora_unet_distilled_guidance_layer_layers_0_in_layer",), "flux sdxl wan"),
    "HiDream": (("diffusion_model.double_stream_blocks.0.block.attn1.to_q",), "flux sdxl wan"),
    "Wan VACE": (("diffusion_model.vace_blocks.0.self_attn.q",), "flux sdxl wan"),
    "Z-Image or Lumina 2": (("diffusion_model.layers.0.attention.to_q",), "flux sdxl wan"),
    "LTX-2": (("diffusion_model.transformer_blocks.0.audio_to_video_attn.to_q",), "flux sdxl wan"),
    "LTX-Video or PixArt": (("transformer.transformer_blocks.0.attn1.to_q",), "flux sdxl wan"),
}


@pytest.mark.parametrize(
    ("made_for", "model"),
    [(made_for, model) for made_for, (_, models) in OTHERS.items() for model in models.split()],
)
def test_adapter_for_another_base_is_named(made_for: str, model: str, tmp_path: Path) -> None:
    arrays: Arrays = {}
    for name in OTHERS[made_for][0]:
        arrays |= low_rank(name, 320, 320)
    file = write(tmp_path / "a.safetensors", arrays)
    with pytest.raises(AdapterError, match=f"; it looks made for {made_for}$"):
        inspect(file, published(model))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ("no JSON", r"is not JSON \(invalid JSON at character 0\)"),
        ("[1]", "is not an object"),
        ("[" * 100_000, "is not JSON"),
        ('{"transformer.alora_invocation_tokens": [1]}', "tokens: adapters of this kind are not"),
        ('{"transformer.lora_alpha": NaN}', "not a usable number"),
        ('{"transformer.lora_alpha": "many"}', "not a usable number"),
        ('{"transformer.lora_alpha": true}', "not a usable number"),
        (f'{{"transformer.lora_alpha": 1{"0" * 400}}}', "not a usable number"),
        ('{"transformer.alpha_pattern": [1]}', "is not an object"),
        ('{"transformer.alpha_pattern": {"(a+)+$": 1}}', "which is no name"),
    ],
)
def test_metadata_that_are_wrong_are_named(config: str, reason: str, tmp_path: Path) -> None:
    file = write(tmp_path / "a.safetensors", sound(), {METADATA: config})
    with pytest.raises(AdapterError, match=reason):
        inspect(file, published("flux"))


def test_different_alphas_in_keys_and_metadata_are_refused(tmp_path: Path) -> None:
    config = json.dumps({"transformer.lora_alpha": 4})
    file = write(tmp_path / "a.safetensors", alpha(1.0)(sound()), {METADATA: config})
    with pytest.raises(AdapterError, match="of 1 in a key and of 4 in lora_adapter_metadata"):
        inspect(file, published("flux"))


def test_equal_alphas_in_keys_and_metadata_count_once(tmp_path: Path) -> None:
    config = json.dumps({"transformer.lora_alpha": 4})
    file = write(tmp_path / "a.safetensors", alpha(4.0)(sound()), {METADATA: config})
    changes = read(file, published("flux")).networks["transformer"].values()
    assert [change.scale for change in changes] == pytest.approx((2.0, 0.8))


@pytest.mark.parametrize(
    ("config", "scales"),
    [
        ({"lora_alpha": 8}, (4.0, 1.6)),
        ({"lora_alpha": 8, "use_rslora": True}, (8 / 2**0.5, 8 / 5**0.5)),
        ({"lora_alpha": 8, "alpha_pattern": {"ff.net.2": 1}}, (4.0, 0.2)),
        ({"alpha_pattern": {"^transformer_blocks.0.attn.to_q": 6}}, (3.0, 1.0)),
        ({"alpha_pattern": {"^attn.to_q": 6}}, (1.0, 1.0)),
        ({}, (1.0, 1.0)),
    ],
)
def test_alphas_of_metadata_scale_each_layer(
    config: dict[str, object], scales: tuple[float, float], tmp_path: Path
) -> None:
    named = {f"transformer.{key}": value for key, value in config.items()}
    file = write(tmp_path / "a.safetensors", sound(), {METADATA: json.dumps(named)})
    changes = read(file, published("flux")).networks["transformer"].values()
    assert [change.scale for change in changes] == pytest.approx(scales)


def test_config_without_networks_scales_each_layer(tmp_path: Path) -> None:
    """A file without networks in its config, as diffusers' `save_lora_adapter` writes for a single
    network, scales each layer."""
    config = {"lora_alpha": 8, "alpha_pattern": {"ff.net.2": 1}, "r": 2, "peft_type": "LORA"}
    arrays = {key.removeprefix("transformer."): array for key, array in sound().items()}
    file = write(tmp_path / "a.safetensors", arrays, {METADATA: json.dumps(config)})
    changes = read(file, published("flux")).networks["transformer"].values()
    assert [change.scale for change in changes] == pytest.approx((4.0, 0.2))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ('{"init_lora_weights": "pissa_niter_4"}', "pissa_niter_4 changes the base"),
        ("{", "adapter_config.json is not JSON"),
        ("[]", "adapter_config.json is not an object"),
        ('{"alpha_pattern": {"(a+)+": 2}}', r"adapter_config.json: alpha_pattern has \(a\+\)\+, w"),
    ],
)
def test_unusable_configs_of_a_folder_are_refused(config: str, reason: str, tmp_path: Path) -> None:
    file = write(tmp_path / "adapter_model.safetensors", sound(), {})
    (tmp_path / "adapter_config.json").write_text(config)
    with pytest.raises(AdapterError, match=reason):
        inspect(file, published("flux"))
    assert inspect(file.rename(tmp_path / "another.safetensors"), published("flux")).rank == 5


def test_a_copy_for_an_upload_has_the_config_of_its_folder(tmp_path: Path) -> None:
    file = write(tmp_path / "adapter_model.safetensors", sound(), {"trained": "yes"})
    (tmp_path / "adapter_config.json").write_text('{"lora_alpha": 8}')
    with with_config(file) as copy:
        assert copy.parent != tmp_path
        changes = read(copy, published("flux")).networks["transformer"].values()
        assert [change.scale for change in changes] == pytest.approx((4.0, 1.6))
    assert not copy.exists()
    for content in (b"", b"x" * 20, b"\x02" + bytes(7) + b"[]"):
        file.write_bytes(content)
        with with_config(file) as same:
            assert same == file


@pytest.mark.parametrize(
    ("old", "new"),
    [
        *((".weight", f".{name}.weight") for name in ("default", "my_lora", "default_0")),
        (".weight", ""),
        *((f"{Q[12:]}.", f"{Q[12:]}.{wrapper}.") for wrapper in ("base_layer", "default")),
        *(("transformer.", f"transformer.{name}.") for name in ("_orig_mod", "module")),
        ("transformer.", "_orig_mod."),
        (".attn.", "._checkpoint_wrapped_module.attn."),
        *(("transformer.", prefix) for prefix in ("pipe.dit.", "dit.")),
    ],
)
def test_names_of_wrappers_in_keys_are_left_out(old: str, new: str, tmp_path: Path) -> None:
    """Prefixes of keys that PEFT, `torch.compile`, data parallelism and others add are removed."""
    plain, wrapped = (
        read(write(tmp_path / f"{number}.safetensors", arrays), published("flux"))
        for number, arrays in enumerate((sound(), renamed(old, new)(sound())))
    )
    assert wrapped.ignored == ()
    assert wrapped.networks["transformer"].keys() == plain.networks["transformer"].keys()


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("lllite_unet_input_blocks_4_1.down.0.weight", "it looks like a ControlNet-LLLite, which"),
        ("lora_controlnet", "it looks like a ControlNet or Control-LoRA"),
        ("image_proj.proj.weight", "it looks like an IP-Adapter; name it in"),
        ("transformer_blocks.0.qkv_proj.lora_down", "converted for Nunchaku; name the file before"),
        ("model.diffusion_model.out.2.weight", "it looks like a whole checkpoint, not an adapter"),
        ("model.diffusion_model.out.9.lora_A.weight", "none of its layers belongs to this model"),
    ],
)
def test_other_files_are_named(key: str, message: str, tmp_path: Path) -> None:
    file = write(tmp_path / "a.safetensors", {key: ONES})
    with pytest.raises(AdapterError, match=message):
        inspect(file, published("sdxl"))


@pytest.mark.parametrize(
    "name",
    [
        "lora_te2_encoder_block_0_layer_0_SelfAttention_k",
        "text_encoder_2.encoder.block.0.layer.0.SelfAttention.q",
    ],
)
def test_layers_of_t5_are_passed_over(name: str, tmp_path: Path) -> None:
    file = write(tmp_path / "a.safetensors", sound() | low_rank(name, 4, 4))
    summary = inspect(file, published("flux"))
    assert len(summary.ignored) == 2
    assert summary.warnings[0].startswith(f"keys without effect: {name}")


def test_summary_matches_the_reader(tmp_path: Path) -> None:
    unknown_keys = {"text_encoders.t5xxl.x.lora_A.weight": np.zeros((2, 2), np.float32)}
    file = write(tmp_path / "a.safetensors", sound() | unknown_keys)
    summary, adapter = inspect(file, published("flux")), read(file, published("flux"))
    assert (
        (summary.rank, summary.networks)
        == (adapter.rank, ("transformer",))
        == (5, ("transformer",))
    )
    assert summary.ignored == adapter.ignored == tuple(unknown_keys)
    assert (summary.bytes, adapter.pages) == (file.stat().st_size, 1)


def test_a_part_of_a_fused_layer_has_the_ranks_that_it_uses(tmp_path: Path) -> None:
    name, rank = "lora_unet_double_blocks_0_img_attn_qkv", 2
    up = np.zeros((3 * WIDTH, 3 * rank), np.float32)
    for part in range(3):
        up[part * WIDTH : (part + 1) * WIDTH, part * rank : (part + 1) * rank] = part + 1
    down = np.arange(3 * rank, dtype=np.float32)[:, None] + np.zeros((1, WIDTH), np.float32)
    arrays = {f"{name}.lora_down.weight": down, f"{name}.lora_up.weight": up}
    file = write(tmp_path / "a.safetensors", {**arrays, f"{name}.alpha": np.array(6, np.float32)})
    adapter = read(file, published("flux"))
    assert adapter.rank == rank
    changes = [*adapter.networks["transformer"].values()]
    assert [change.down.float32()[:, 0].tolist() for change in changes] == [[0, 1], [2, 3], [4, 5]]
    assert {change.scale for change in changes} == {1.0}, "alpha is for the ranks of the file"
