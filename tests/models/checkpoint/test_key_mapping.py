"""Rename tables: the first rule wins, layer indices are split off, errors name checkpoint keys."""

from __future__ import annotations

import pytest

from models.checkpoint.key_mapping import Renames, Target, layer_renames, source, split, target
from models.flux.key_mapping import RENAMES as FLUX
from models.text.clip import RENAMES as CLIP
from models.text.t5 import RENAMES as T5

RULES: Renames = (
    (r"old\.positions", ""),
    (r"head\.weight", "head.kernel"),
    (r"layers\.(\d+)\.(q|k)\.weight", r"blocks.\2.kernel[\1]"),
    (r"(.+)\.weight", r"\1.kernel"),
)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("old.positions", Target("", None, 0)),
        ("head.weight", Target("head.kernel", None, 1)),
        ("layers.12.k.weight", Target("blocks.k.kernel", 12, 2)),
        ("down.0.weight", Target("down.0.kernel", None, 3)),
        ("head.weight.more", None),
        ("my.old.positions", None),
    ],
)
def test_target(key: str, expected: Target | None) -> None:
    assert target(key, RULES) == expected


@pytest.mark.parametrize(
    ("renames", "path", "layer", "key"),
    [
        (RULES, "blocks.q.kernel", 3, "layers.3.q.weight"),
        (RULES, "head.kernel", None, "head.weight"),
        (RULES, "some.other.kernel", None, "some.other.weight"),
        (CLIP, "blocks.q.bias", 11, "encoder.layers.11.self_attn.q_proj.bias"),
        (T5, "token_embedding.embedding", None, "shared.weight"),
        (T5, "blocks.attention.v.kernel", 0, "encoder.block.0.layer.0.SelfAttention.v.weight"),
        (FLUX, "double_blocks.text.out.bias", 7, "transformer_blocks.7.attn.to_add_out.bias"),
    ],
)
def test_source_spells_a_key(renames: Renames, path: str, layer: int | None, key: str) -> None:
    assert source(path, layer, renames) == key


FUSED: Renames = (
    (r"layers\.(\d+)\.qkv\.weight", r"blocks.{q,k,v}.kernel[\1]"),
    (r"projection", "projection.kernel.T"),
)


def test_one_tensor_for_several_leaves() -> None:
    goal = target("layers.3.qkv.weight", FUSED)
    assert goal == Target("blocks.{q,k,v}.kernel", 3, 0)
    assert split(goal.path) == ("blocks.q.kernel", "blocks.k.kernel", "blocks.v.kernel")
    assert split("blocks.q.kernel") == ("blocks.q.kernel",)
    assert source("blocks.k.kernel", 3, FUSED) == "layers.3.qkv.weight"
    assert source("blocks.o.kernel", 3, FUSED) is None


def test_transposed_matrix_maps_to_a_kernel() -> None:
    assert target("projection", FUSED) == Target("projection.kernel", None, 1, transposed=True)
    assert source("projection.kernel", None, FUSED) == "projection"


def test_source_returns_none_for_unmapped_paths() -> None:
    assert source("blocks.v.kernel", 3, RULES) is None
    assert source("head.bias", None, RULES) is None


def test_a_table_of_layers() -> None:
    renames = layer_renames(
        {r"attn\.to_q": "heads.q", "proj": "{gate,up}"}, {"norm": "norm"}, ("blocks", "stack")
    )
    assert target("blocks.7.attn.to_q.weight", renames) == Target("stack.heads.q.kernel", 7, 0)
    wide = target("blocks.7.proj.bias", renames)
    assert wide is not None and split(wide.path) == ("stack.gate.bias", "stack.up.bias")
    assert target("blocks.7.norm.weight", renames) == Target("stack.norm.scale", 7, 4)
    assert target("blocks.7.norm.bias", renames) is None and target("proj.weight", renames) is None
    assert target("proj.weight", layer_renames({"proj": "out"})) == Target("out.kernel", None, 0)
