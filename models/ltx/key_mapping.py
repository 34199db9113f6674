"""Names in a diffusers checkpoint of LTX-2 → paths in its networks."""

from __future__ import annotations

from models.checkpoint.key_mapping import Renames

_LEAVES = {"weight": "kernel", "bias": "bias"}


def attention(theirs: str, ours: str) -> dict[str, str]:
    """Names of one attention; both sides name what is before the leaf."""
    layers = {
        **{rf"to_{one}": one for one in "qkv"},
        r"to_out\.0": "out",
        "to_gate_logits": "gate",
    }
    return {
        **{
            rf"{theirs}\.{name}\.{leaf}": f"{ours}.{own}.{to}"
            for name, own in layers.items()
            for leaf, to in _LEAVES.items()
        },
        **{rf"{theirs}\.norm_{one}\.weight": f"{ours}.{one}_norm.scale" for one in "qk"},
    }


def feed_forward(theirs: str, ours: str) -> dict[str, str]:
    """Names of one feed-forward."""
    return {
        rf"{theirs}\.net\.{name}\.{leaf}": f"{ours}.{own}.{to}"
        for name, own in ((r"0\.proj", "up"), ("2", "down"))
        for leaf, to in _LEAVES.items()
    }


_CONNECTOR = {**attention("attn1", "attention"), **feed_forward("ff", "feed_forward")}


def connector_renames(per_modality: bool) -> Renames:
    """Names of the connectors.

    Args:
        per_modality: whether each stream has a projection of its own.
    """
    projections = (
        ("video_text_proj_in", "audio_text_proj_in") if per_modality else ("text_proj_in",)
    )
    return (
        *(
            (rf"{name}\.{leaf}", f"projections.{number}.{to}")
            for number, name in enumerate(projections)
            for leaf, to in _LEAVES.items()
        ),
        *(
            (
                rf"{stream}_connector\.transformer_blocks\.(\d+)\.{theirs}",
                rf"{stream}.blocks.{ours}[\1]",
            )
            for stream in ("video", "audio")
            for theirs, ours in _CONNECTOR.items()
        ),
        *(
            (rf"{stream}_connector\.learnable_registers", f"{stream}.registers")
            for stream in ("video", "audio")
        ),
    )
