"""Maps array names of Chroma checkpoints, single files and adapters to paths in its transformer.

Source: diffusers' ChromaTransformer2DModel, and its single_file_utils.py for the authors' names.
"""

from __future__ import annotations

from models.adapters.layer_names import Spelling
from models.checkpoint.authors_names import Fused
from models.checkpoint.key_mapping import Renames, layer_renames
from models.checkpoint.single_file import TRANSFORMER_PREFIXES, Naming
from models.flow.joint_names import (
    GELU_FEED_FORWARD,
    SINGLE_LAYERS,
    SINGLE_RENAMES,
    authors_layers,
    authors_table,
    double_renames,
    outer_layers,
)

_APPROXIMATOR = "distilled_guidance_layer"
_LAYER = rf"{_APPROXIMATOR}\.layers"
_NORM = rf"{_APPROXIMATOR}\.norms\.(\d+)"

RENAMES: Renames = (
    *layer_renames(
        {
            **outer_layers("x_embedder", "context_embedder", {}),
            rf"{_APPROXIMATOR}\.in_proj": "conditions.first",
            rf"{_APPROXIMATOR}\.out_proj": "conditions.last",
        }
    ),
    *layer_renames(
        {"linear_1": "mlp.first", "linear_2": "mlp.second"}, stack=(_LAYER, "conditions.layers")
    ),
    (rf"{_NORM}\.weight", r"conditions.layers.norm.scale[\1]"),
    *double_renames(GELU_FEED_FORWARD),
    *SINGLE_RENAMES,
)
"""Keys of Chroma in diffusers' layout → paths."""

LAYERS: Fused = {
    **authors_layers("time_text_embed", "net.0.proj", "net.2"),
    **SINGLE_LAYERS,
    **{f"{_APPROXIMATOR}.{name}": (f"{_APPROXIMATOR}.{name}",) for name in ("in_proj", "out_proj")},
    f"{_APPROXIMATOR}.layers.{{}}.in_layer": (f"{_APPROXIMATOR}.layers.{{}}.linear_1",),
    f"{_APPROXIMATOR}.layers.{{}}.out_layer": (f"{_APPROXIMATOR}.layers.{{}}.linear_2",),
}
"""Authors' names of linear layers → diffusers'; names of Flux that Chroma lacks have no effect."""
AUTHORS_RENAMES: Renames = (
    *authors_table(LAYERS, RENAMES),
    (rf"{_NORM}\.scale", r"conditions.layers.norm.scale[\1]"),
)
"""Keys of Chroma with the authors' names → paths."""

NAMINGS = (
    Naming(TRANSFORMER_PREFIXES, "img_in.weight", AUTHORS_RENAMES),
    Naming(TRANSFORMER_PREFIXES, "x_embedder.weight", RENAMES),
)
"""Array naming schemes of Chroma in single files."""

SPELLINGS = (Spelling(RENAMES, fused=lambda network: LAYERS),)
"""Layer names of Chroma in adapter files."""
