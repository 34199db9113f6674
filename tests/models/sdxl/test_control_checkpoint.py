"""Sources of SDXL ControlNets: single files equal folders, and unsupported files are refused.

The writer of files in the original keys is itself compared with diffusers' own conversion.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from diffusers.loaders import single_file_utils
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from models import registry
from models.checkpoint.folder import CheckpointError, WeightsError
from models.checkpoint.safetensors import ComponentFiles
from models.loading.abstract import abstract_module
from models.loading.sources import SHAPES, ControlSource
from models.sdxl.control_config import ControlNetConfig
from models.sdxl.control_file import read_file
from models.sdxl.controlnet import ControlNet
from models.sdxl.key_mapping import CONTROL_RENAMES
from models.weights.loader import flat_parameters, load
from tests.models.sdxl.original_writer import write_cldm
from tests.parity.tiny_krea2 import make_krea2
from tests.parity.tiny_sdxl import make_control, make_sdxl

WEIGHTS = "diffusion_pytorch_model.safetensors"
LEVELS: dict[str, Any] = {
    "block_out_channels": (8, 16, 24),
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "layers_per_block": 2,
    "transformer_layers_per_block": (1, 1, 2),
    "attention_head_dim": (1, 2, 3),
}
"""Block numbering equal to SDXL's."""
UP = ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D")
VAE = {"block_out_channels": (4, 4, 4, 8)}
HINT = {"conditioning_embedding_out_channels": (3, 4, 5, 6)}
NETS: Mapping[str, dict[str, Any]] = {
    "edges": {},
    "small": {
        "down_block_types": ("DownBlock2D",) * 3,
        "transformer_layers_per_block": (0, 0, 0),
    },
    "union": {"num_control_type": 8, "num_trans_head": 8},
    "wide": {"block_out_channels": (8, 16, 32), "attention_head_dim": (1, 2, 4)},
    "other text": {"cross_attention_dim": 20},
    "other VAE": {"conditioning_embedding_out_channels": (3, 4, 5)},
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a checkpoint in `sdxl`, and ControlNets in folders of their names."""
    root = tmp_path_factory.mktemp("controls")
    make_sdxl(root / "sdxl", unet={**LEVELS, "up_block_types": UP}, vae=VAE)
    for seed, (name, config) in enumerate(NETS.items()):
        make_control(root / name, root / "sdxl", seed, **{**LEVELS, **HINT, **config})
    return root


def of_folder(folder: Path) -> ControlNetConfig:
    return ControlNetConfig.from_dict(json.loads((folder / "config.json").read_text()))


def arrays(config: ControlNetConfig, place: Path | ComponentFiles, renames: Any) -> dict[str, Any]:
    module = load(abstract_module(ControlNet, config), place, renames, dtype=jnp.float32)
    return {path: np.asarray(leaf[...]) for path, leaf in flat_parameters(module).items()}


def assert_the_folders(file: Path, folder: Path, base: Mapping[str, Any]) -> None:
    config, place, renames = read_file(file, base)
    reference = of_folder(folder)
    assert config.trunk.down_levels == reference.trunk.down_levels
    assert replace(config, trunk=reference.trunk) == reference
    output, expected = arrays(config, place, renames), arrays(config, folder, CONTROL_RENAMES)
    assert output.keys() == expected.keys()
    for path, array in output.items():
        np.testing.assert_array_equal(array, expected[path])


def unet_config(root: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((root / "sdxl" / "unet" / "config.json").read_text())
    return config


def test_the_writer_is_diffusers_conversion_the_other_way_round(root: Path, tmp_path: Path) -> None:
    stored = load_file(root / "edges" / WEIGHTS)
    written = load_file(write_cldm(root / "edges", tmp_path / "edges.safetensors"))
    config = {"layers_per_block": LEVELS["layers_per_block"]}
    converted = single_file_utils.convert_controlnet_checkpoint(dict(written), config)
    left_out = stored.keys() - converted.keys()
    assert all(key.startswith("add_embedding.") for key in left_out), (
        "only SDXL's embedding may be missing"
    )
    for key, tensor in converted.items():
        assert torch.equal(tensor, stored[key]), key


@pytest.mark.parametrize("prefix", ["", "control_model."])
def test_original_keys_match_the_folder(root: Path, tmp_path: Path, prefix: str) -> None:
    file = write_cldm(root / "edges", tmp_path / "edges.safetensors", prefix)
    assert_the_folders(file, root / "edges", unet_config(root))


@pytest.mark.parametrize("name", ["edges", "small", "union"])
def test_config_is_inferred_from_diffusers_keys(root: Path, name: str) -> None:
    """The number of heads of a union's kinds is not in the arrays; the published value is used."""
    assert_the_folders(root / name / WEIGHTS, root / name, unet_config(root))


def test_missing_control_array_is_named(root: Path, tmp_path: Path) -> None:
    file = write_cldm(root / "edges", tmp_path / "edges.safetensors")
    remaining = load_file(file)
    del remaining["control_model.zero_convs.4.0.bias"]
    save_file(remaining, file)
    with pytest.raises(WeightsError, match=r"zero_convs\.4\.0\.bias|out\.4\.bias"):
        loaded(root, {"edges": ControlSource(str(file))})


def loaded(root: Path, controls: Mapping[str, ControlSource], **options: Any) -> Any:
    source = str(root / "sdxl")
    return registry.load("m", source, "float32", {}, controls=controls, max_controls=2, **options)


@pytest.mark.parametrize(
    ("net", "mode", "said"),
    [
        ("nowhere", None, "nowhere"),
        ("sdxl/vae/" + WEIGHTS, None, "no ControlNet"),
        ("wide", None, r"block_out_channels is \(8, 16, 32\)"),
        ("other text", None, "cross_attention_dim is 20"),
        ("other VAE", None, "by 4, and the VAE by 8"),
        ("edges", "canny", "mode 'canny' needs a union"),
        ("union", None, "is a union; set its mode: openpose"),
        ("union", "sketch", "mode 'sketch' must be one of"),
        ("union", "8", "mode '8' must be one of"),
        ("pickled.pth", None, "pickled"),
        ("control-lora.safetensors", None, "no ControlNet"),
        ("pooled", None, "global_pool_conditions"),
    ],
)
def test_unsupported_checkpoint_is_named(root: Path, net: str, mode: str | None, said: str) -> None:
    write_odd_ones(root)
    with pytest.raises(CheckpointError, match=rf"controls\.mine: .*{said}"):
        loaded(root, {"mine": ControlSource(str(root / net), mode)}, reader=SHAPES)


def write_odd_ones(root: Path) -> None:
    (root / "pickled.pth").write_bytes(b"\x80\x02}q\x00.")
    lora = {"lora_controlnet": torch.zeros(0), "input_blocks.1.0.in_layers.2.up": torch.zeros(1)}
    save_file(lora, root / "control-lora.safetensors")
    shutil.copytree(root / "edges", root / "pooled", dirs_exist_ok=True)
    config = json.loads((root / "pooled" / "config.json").read_text())
    changed = json.dumps({**config, "global_pool_conditions": True})
    (root / "pooled" / "config.json").write_text(changed)


def test_a_union_is_loaded_once_for_all_names_of_a_path(root: Path, tmp_path: Path) -> None:
    """Images of one path share a run. Images of a plain ControlNet never do."""
    (tmp_path / "link").symlink_to(root / "union")
    folders = {"canny": root / "union", "depth": root / "union", "7": tmp_path / "link"}
    modes = {mode: ControlSource(str(path), mode) for mode, path in folders.items()}
    pipeline = loaded(root, {**modes, "edges": ControlSource(str(root / "edges"))}, reader=SHAPES)
    assert len(pipeline.weights.controls) == 3
    modes_and_unions = {
        name: (kind.mode, kind.union) for name, kind in pipeline.spec.controls.items()
    }
    assert modes_and_unions == {
        "canny": ("canny", 1),
        "depth": ("depth", 1),
        "7": ("7", 2),
        "edges": (None, None),
    }


def test_single_file_from_a_hub_repository(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub's cache contains a link to a file without a suffix, whose content may change."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    repository, commit = tmp_path / "models--owner--union", "0123456789abcdef" * 2 + "01234567"
    for folder in ("blobs", "refs", f"snapshots/{commit}"):
        (repository / folder).mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    (repository / "snapshots" / commit / "promax.safetensors").symlink_to(
        repository / "blobs" / "1"
    )
    fingerprints = set()
    for scale in (1, 2):
        arrays = {key: scale * array for key, array in load_file(root / "union" / WEIGHTS).items()}
        save_file(arrays, repository / "blobs" / "1")
        source = ControlSource("owner/union:promax.safetensors", "canny")
        spec = loaded(root, {"canny": source}, reader=SHAPES).spec
        fingerprints.add(spec.fingerprint)
        assert spec.controls["canny"].mode == "canny"
    assert len(fingerprints) == 2


def test_a_family_without_controls_refuses_them(root: Path, tmp_path: Path) -> None:
    controls = {"edges": ControlSource(str(root / "edges"))}
    with pytest.raises(CheckpointError, match="controls are set, but Krea2Pipeline does not"):
        registry.load("m", str(make_krea2(tmp_path)), "float32", {}, controls=controls)
