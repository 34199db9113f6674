"""Array names of joint transformers, in diffusers' checkpoints and in single files.

Source: diffusers' transformer_flux.py, for the double blocks that Flux's families and Qwen-Image
share; Black Forest Labs, FLUX.1 (flux/model.py) and FLUX.2 (src/flux2/model.py), for the authors'
names.
"""

from __future__ import annotations

from collections.abc import Mapping

from models.checkpoint.authors_names import Fused, authors_renames
from models.checkpoint.key_mapping import Renames, layer_renames

BLOCKS, SINGLE_BLOCKS = "transformer_blocks", "single_transformer_blocks"
DOUBLE, SINGLE = f"{BLOCKS}.{{}}.", f"{SINGLE_BLOCKS}.{{}}."
"""Prefixes of the names of a block's layers; `{}` is its number."""

HEADS = {f"attn\\.to_{letter}": f"heads.{letter}" for letter in "qkv"}
HEAD_NORMS = {f"attn\\.norm_{letter}": f"heads.{letter}_norm" for letter in "qk"}
"""Names in a single block → paths in its stack."""

GELU_FEED_FORWARD = {r"net\.0\.proj": "up", r"net\.2": "down"}
"""Names of the layers of FLUX.1's feed-forward → their paths in it."""
SINGLE_RENAMES: Renames = layer_renames(
    {**HEADS, "proj_mlp": "middle.up", "proj_out": "down"},
    HEAD_NORMS,
    (SINGLE_BLOCKS, "single_blocks"),
)
"""Keys of FLUX.1's single blocks, without their modulations → paths."""

IMAGE_QKV = tuple(f"{DOUBLE}attn.to_{letter}" for letter in "qkv")
TEXT_QKV = tuple(f"{DOUBLE}attn.add_{letter}_proj" for letter in "qkv")
SINGLE_QKV = tuple(f"{SINGLE}attn.to_{letter}" for letter in "qkv")
"""Names of the layers that the authors' files fuse into one."""
SINGLE_LAYERS: Fused = {
    "single_blocks.{}.linear1": (*SINGLE_QKV, f"{SINGLE}proj_mlp"),
    "single_blocks.{}.linear2": (f"{SINGLE}proj_out",),
}
"""Authors' names of the layers in FLUX.1's single blocks, without their modulations."""

SWAPPED = frozenset({"final_layer.adaLN_modulation.1"})
"""Authors' names of layers with scale and shift in the other order."""


def outer_layers(latents: str, text: str, embedders: Mapping[str, str]) -> dict[str, str]:
    """Return the names of the layers outside all blocks → their paths.

    Args:
        latents, text: names of the layers that read latents and text.
        embedders: names of the embedders of time and others → their paths in the conditions.
    """
    return {
        latents: "latents_in",
        text: "text_in",
        **{
            rf"{source}_embedder\.linear_{number}": f"conditions.{path}.{part}"
            for source, path in embedders.items()
            for number, part in ((1, "first"), (2, "second"))
        },
        r"norm_out\.linear": "conditions.out_modulation.linear",
        "proj_out": "latents_out",
    }


def double_renames(
    feed_forward: Mapping[str, str], image: str = "ff", text: str = "ff_context"
) -> Renames:
    """Return the rename rules of stacked double blocks (`models.nn.blocks.double_stream`).

    Args:
        feed_forward: names of a feed-forward's layers → their paths in it.
        image, text: names of the streams' feed-forwards.
    """
    return (
        *_stream("image", "to_{}", "norm_{}", r"to_out\.0", image, feed_forward),
        *_stream("text", "add_{}_proj", "norm_added_{}", "to_add_out", text, feed_forward),
    )


def _stream(
    target: str,
    project: str,
    norm: str,
    out: str,
    feed_forward: str,
    layers_in_it: Mapping[str, str],
) -> Renames:
    """Return the rename rules of one stream of the double blocks; callables name its layers."""
    layers = {
        **{rf"attn\.{project.format(letter)}": f"attention.{letter}" for letter in "qkv"},
        rf"attn\.{out}": "out",
        **{
            rf"{feed_forward}\.{source}": f"feed_forward.{path}"
            for source, path in layers_in_it.items()
        },
    }
    norms = {rf"attn\.{norm.format(letter)}": f"attention.{letter}_norm" for letter in "qk"}
    return layer_renames(layers, norms, (BLOCKS, f"double_blocks.{target}"))


def authors_layers(time: str, inner: str, outer: str) -> Fused:
    """Return the authors' names of the layers outside all blocks, and in the double blocks.

    Args:
        time: diffusers' name of the embedding of time and guidance.
        inner, outer: its names of a feed-forward's first and last layer.
    """
    return {
        "img_in": ("x_embedder",),
        "txt_in": ("context_embedder",),
        "time_in.in_layer": (f"{time}.timestep_embedder.linear_1",),
        "time_in.out_layer": (f"{time}.timestep_embedder.linear_2",),
        "guidance_in.in_layer": (f"{time}.guidance_embedder.linear_1",),
        "guidance_in.out_layer": (f"{time}.guidance_embedder.linear_2",),
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
    """Return the rename rules of the authors' keys: layers, and norms by head with older names.

    Args:
        renames: rules of diffusers' keys.
    """
    return (
        *authors_renames(layers, renames, SWAPPED),
        *(
            (rf"{source}\.{long}_norm\.(?:scale|weight)", rf"{target}.{short}_norm.scale[\1]")
            for source, target in _NORMED.items()
            for long, short in (("query", "q"), ("key", "k"))
        ),
    )
