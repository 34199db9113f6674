"""Names of the arrays of joint transformers, in checkpoints of diffusers and in single files.

Source: diffusers' transformer_flux.py, for the double blocks that Flux's families and Qwen-Image
have in common; Black Forest Labs, FLUX.1 (flux/model.py) and FLUX.2 (src/flux2/model.py), for the
authors' names.
"""

from __future__ import annotations

from collections.abc import Mapping

from models.checkpoint.authors_names import Fused, authors_renames
from models.checkpoint.key_mapping import Renames, layer_renames

BLOCKS, SINGLE_BLOCKS = "transformer_blocks", "single_transformer_blocks"
DOUBLE, SINGLE = f"{BLOCKS}.{{}}.", f"{SINGLE_BLOCKS}.{{}}."
"""Beginnings of the names of a block's layers; `{}` is its number."""

HEADS = {f"attn\\.to_{one}": f"heads.{one}" for one in "qkv"}
HEAD_NORMS = {f"attn\\.norm_{one}": f"heads.{one}_norm" for one in "qk"}
"""Names in a single block → paths in its stack."""

IMAGE_QKV = tuple(f"{DOUBLE}attn.to_{one}" for one in "qkv")
TEXT_QKV = tuple(f"{DOUBLE}attn.add_{one}_proj" for one in "qkv")
"""Names of the layers that the authors have as one."""

SWAPPED = frozenset({"final_layer.adaLN_modulation.1"})
"""Authors' names of layers whose scale and shift lie the other way round."""


def double_renames(image: Mapping[str, str], text: Mapping[str, str]) -> Renames:
    """Return the rules of stacked double blocks (`models.nn.blocks.double_stream`).

    Args:
        image, text: names of a stream's feed-forward layers → their paths in the feed-forward.
    """
    return (
        *_stream("image", "to_{}", "norm_{}", r"to_out\.0", image),
        *_stream("text", "add_{}_proj", "norm_added_{}", "to_add_out", text),
    )


def _stream(
    ours: str, project: str, norm: str, out: str, feed_forward: Mapping[str, str]
) -> Renames:
    """Return the rules of one stream; `project` and `norm` name layers of q, k or v."""
    layers = {
        **{rf"attn\.{project.format(one)}": f"attention.{one}" for one in "qkv"},
        rf"attn\.{out}": "out",
        **{theirs: f"feed_forward.{path}" for theirs, path in feed_forward.items()},
    }
    norms = {rf"attn\.{norm.format(one)}": f"attention.{one}_norm" for one in "qk"}
    return layer_renames(layers, norms, (BLOCKS, f"double_blocks.{ours}"))


def authors_layers(time: str, inner: str, outer: str) -> Fused:
    """Return the authors' names of the layers around all blocks, and in the double ones.

    Args:
        time: diffusers' name of what embeds the time.
        inner, outer: its names of a feed-forward's first and last layer.
    """
    return {
        "img_in": ("x_embedder",),
        "txt_in": ("context_embedder",),
        "time_in.in_layer": (f"{time}.timestep_embedder.linear_1",),
        "time_in.out_layer": (f"{time}.timestep_embedder.linear_2",),
        "double_blocks.{}.img_attn.qkv": IMAGE_QKV,
        "double_blocks.{}.txt_attn.qkv": TEXT_QKV,
        "double_blocks.{}.img_attn.proj": (f"{DOUBLE}attn.to_out.0",),
        "double_blocks.{}.txt_attn.proj": (f"{DOUBLE}attn.to_add_out",),
        "double_blocks.{}.img_mlp.0": (f"{DOUBLE}ff.{inner}",),
        "double_blocks.{}.img_mlp.2": (f"{DOUBLE}ff.{outer}",),
        "double_blocks.{}.txt_mlp.0": (f"{DOUBLE}ff_context.{inner}",),
        "double_blocks.{}.txt_mlp.2": (f"{DOUBLE}ff_context.{outer}",),
        "final_layer.adaLN_modulation.1": ("norm_out.linear",),
        "final_layer.linear": ("proj_out",),
    }


_NORMED = {
    r"double_blocks\.(\d+)\.img_attn\.norm": "double_blocks.image.attention",
    r"double_blocks\.(\d+)\.txt_attn\.norm": "double_blocks.text.attention",
    r"single_blocks\.(\d+)\.norm": "single_blocks.heads",
}


def authors_table(layers: Fused, renames: Renames) -> Renames:
    """Return the rules of the authors' keys: of layers, and of norms by head, older names too.

    Args:
        renames: the table of diffusers' keys.
    """
    return (
        *authors_renames(layers, renames, SWAPPED),
        *(
            (rf"{theirs}\.{long}_norm\.(?:scale|weight)", rf"{ours}.{short}_norm.scale[\1]")
            for theirs, ours in _NORMED.items()
            for long, short in (("query", "q"), ("key", "k"))
        ),
    )
